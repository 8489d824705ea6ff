"""What a step may return is refused at once when it cannot mean anything."""

from __future__ import annotations

import pytest

from surefoot.state.errors import ConfigError
from surefoot.state.steps.results import Signals, all_of, any_of, n_of


def test_several_signals_say_how_many_of_which_names() -> None:
    assert all_of("x", "y") == Signals(("x", "y"), "all", 2)
    assert any_of("x", "y") == Signals(("x", "y"), "any", 1)
    assert n_of(3, "x") == Signals(("x",), "count", 3)


@pytest.mark.parametrize("names", [(), ("x", "x"), ("",), ("x", "")])
def test_names_of_signals_are_there_and_each_once(names: tuple[str, ...]) -> None:
    for make in (all_of, any_of, lambda *given: n_of(1, *given)):
        with pytest.raises(ConfigError, match="at least one signal name, and each once"):
            make(*names)


@pytest.mark.parametrize("need", [0, -1])
def test_no_signals_at_all_cannot_be_waited_for(need: int) -> None:
    with pytest.raises(ConfigError, match="the number must be 1 or more"):
        n_of(need, "x")
