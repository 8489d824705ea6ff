"""The page about the state machine says what its table says."""

from __future__ import annotations

from surefoot.state.machine import decide as machine
from surefoot.state.machine.decide import TABLE
from tests.generate.state_diagram import PAGE, WORDS, arrows, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.generate.state_diagram"


def test_every_input_has_a_word_and_every_arrow_is_drawn() -> None:
    assert WORDS.keys() == machine.WORDS.keys()
    assert sum(map(len, arrows().values())) == sum(map(len, TABLE.values()))
    text = page()
    for (status, after), labels in arrows().items():
        if after is not None and status != after:
            assert f"{status or '[*]'} --> {after}: {', '.join(labels)}\n" in text
