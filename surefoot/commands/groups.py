"""How commands are put together: each has a module, imported only when the command is used."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


def commands(**options: Any) -> typer.Typer:
    """Create the Typer app of one command, or of several that are part of a group."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def group(text: str) -> typer.Typer:
    """Create the Typer app of a group's commands, even if there is only one."""
    return commands(help=text, callback=lambda: None)


class LazyGroup(TyperGroup):
    """Imports the module of a command when it is used; listing the commands imports none."""

    #: first sentence of the help, by the command's module in surefoot.commands; the last part of
    #: the module's name is the command's
    table: ClassVar[dict[str, str]]

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands = _Modules({path.rpartition(".")[2]: path for path in self.table})

    def format_commands(self, _: Any, formatter: Any) -> None:
        room = formatter.width - 6 - max(map(len, self.commands))
        rows = [
            (name, TyperCommand(name, help=told).get_short_help_str(room))
            for name, told in zip(self.commands, self.table.values(), strict=True)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class _Modules(UserDict[str, Any]):
    """Commands by name, loaded from their modules."""

    def __getitem__(self, name: str) -> Any:
        return get_command(import_module(f"surefoot.commands.{self.data[name]}").app)
