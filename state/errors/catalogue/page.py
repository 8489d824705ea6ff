"""What there is to tell of one error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Plain text; what is typed stands in backquotes."""

    #: SF and four digits; the first two tell the theme
    number: str
    title: str
    #: what has happened, and what has not
    means: str
    #: the likeliest first
    causes: tuple[str, ...]
    #: what to do, the likeliest first; each names what to type
    mend: tuple[str, ...]
    #: words by which failures and refusals say the same, in records and in answers
    codes: tuple[str, ...] = ()
