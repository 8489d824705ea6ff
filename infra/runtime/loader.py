"""Loads agents from a user's file, as the module that Python itself would import.

The module's name starts at the first folder upwards that is not a package: a file in `shop/agents/`
is `shop.agents.refunds` when both folders have an `__init__.py`, and `refunds` when neither has.
That folder stays on the path. So relative imports, imports within a step, and other processes that
look a function up by its module's name all find the same module.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.inspect.lint import lint_agent
from surefoot.state.names.topics import OUTBOX


def load_agents(paths: Sequence[Path]) -> list[Agent]:
    """Import the files and return every Agent that they define at top level, checked.

    A path may also be a module's name (`shop.agents.refunds`), looked up from the current folder.
    An agent that a file imports belongs to the other file, unless `__all__`, a list of agents or
    `from x import a as a` says otherwise.

    Raises: ConfigError — no such file, no agent in it, two agents of one name, a declaration that
    cannot work, or files that Python cannot tell apart; whatever the file itself raises.
    """
    agents: dict[str, Agent] = {}
    for path in paths:
        found = _agents_in(_import(path))
        if not found:
            raise ConfigError(
                "SF1102",
                f'{path} defines no agent; write `my_agent = Agent("my-agent")`, or list those '
                "that it imports from other files: `agents = [my_agent]`",
            )
        for agent in found:
            if agent.name == OUTBOX:
                raise ConfigError(
                    "SF1103", f"{path}: the agent name {OUTBOX!r} is reserved; choose another one"
                )
            if agents.setdefault(agent.name, agent) is not agent:
                raise ConfigError(
                    "SF1104", f"{path}: two agents are named {agent.name!r}; rename one of them"
                )
            lint_agent(agent)
    return list(agents.values())


def pool_agents(agents: Sequence[Agent], pool: str) -> list[Agent]:
    """Return the agents that run the steps of that pool.

    Raises: ConfigError — none of the agents has a step in it.
    """
    found = [agent.pool(pool) for agent in agents if pool in agent.pools]
    if not found:
        there = sorted({name for agent in agents for name in agent.pools})
        raise ConfigError(
            "SF1110",
            f"no step has the pool {pool!r}; existing pools: {', '.join(there) or 'none'}",
        )
    return found


# Which agents are a file's own ----------------------------------------------------------------


def _agents_in(module: ModuleType) -> list[Agent]:
    borrowed = _borrowed(module)
    found: dict[int, Agent] = {}
    for name, value in vars(module).items():
        if name in borrowed:
            continue
        parts = value.values() if isinstance(value, dict) else value
        for each in parts if isinstance(value, dict | list | tuple) else [value]:
            if isinstance(each, Agent):
                found[id(each)] = each
    return list(found.values())


def _borrowed(module: ModuleType) -> set[str]:
    """Return the names that the module's source only imports and does not export."""
    imported: set[str] = set()
    own = {str(name) for name in getattr(module, "__all__", ())}
    try:
        source = inspect.getsource(module)
    except OSError:  # no source, or an empty one
        return set()
    for node in _at_top_level(ast.parse(source)):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                imported |= vars(_module_of(node, module)).keys()
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    (own if alias.name == alias.asname else imported).add(
                        alias.asname or alias.name
                    )
            case ast.Name(ctx=ast.Store()):
                own.add(node.id)
    return imported - own


def _module_of(node: ast.ImportFrom, module: ModuleType) -> ModuleType:
    name = "." * node.level + (node.module or "")
    return sys.modules[importlib.util.resolve_name(name, module.__package__)]


def _at_top_level(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from _at_top_level(child)


# Importing it ---------------------------------------------------------------------------------


class _Roots:
    """The folders that agents are imported from; they stay on the path.

    Also a finder that refuses a name that two of them have, since only one can be the module of
    that name."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        #: those that were not on the path before
        self._added: list[str] = []
        self._before: set[str] = set()

    def add(self, folder: Path) -> None:
        """Add a folder. Raises ConfigError — it also has a module loaded from another one."""
        if folder in self.folders:
            return
        if not self.folders:
            self._before = set(sys.modules)
            sys.meta_path.insert(0, self)
        for name, _ in self.imported():
            if "." not in name and _has(folder, name):
                raise _twice(name, *(root for root in self.folders if _has(root, name)), folder)
        self.folders.append(folder)
        if str(folder) not in sys.path:
            self._added.append(str(folder))
            sys.path.insert(0, str(folder))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Check the name, and leave the import to the next finders. Raises ConfigError."""
        del target
        if path is None and len(self.folders) > 1:
            there = [folder for folder in self.folders if _has(folder, name)]
            if len(there) > 1:
                raise _twice(name, *there)
        return None

    def imported(self) -> Iterator[tuple[str, Path]]:
        """Yield (name, file) of the modules loaded from the folders, except installed ones."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file is None or name in self._before or name.partition(".")[0] == "surefoot":
                continue
            path = Path(file)
            if "site-packages" not in path.parts and any(
                path.is_relative_to(folder) for folder in self.folders
            ):
                yield name, path

    def forget(self) -> None:
        if not self.folders:
            return
        roots = {name.partition(".")[0] for name, _ in self.imported()}
        for name in set(sys.modules) - self._before:
            if name.partition(".")[0] in roots:  # also packages without a file of their own
                del sys.modules[name]
        for folder in self._added:
            sys.path.remove(folder)
        sys.meta_path.remove(self)
        self.folders.clear()
        self._added.clear()


_ROOTS = _Roots()


def imported() -> dict[str, Path]:
    """Return the loaded modules of the user: file by name."""
    return dict(_ROOTS.imported())


def roots() -> list[Path]:
    """Return the folders that they are imported from."""
    return list(_ROOTS.folders)


def forget() -> None:
    """Unload them, so that the next load imports everything again, as in a new process."""
    _ROOTS.forget()


def _has(folder: Path, name: str) -> bool:
    spec = PathFinder.find_spec(name, [str(folder)])
    return spec is not None and spec.loader is not None and spec.has_location


def _twice(name: str, *folders: Path) -> ConfigError:
    return ConfigError(
        "SF1182",
        f"{' and '.join(map(str, folders))} both have a module {name!r}, and a process can have "
        "only one: give one of them another name, run them as processes of their own, or name the "
        "agents' modules from the folder above (`surefoot dev one.agent`) and import what is "
        "beside them with `from . import ...`",
    )


def _import(path: Path) -> ModuleType:
    file = path / "__init__.py" if path.is_dir() else path
    importlib.invalidate_caches()
    if not file.is_file():
        return _import_named(path)
    file = file.absolute()
    folder, parts = file.parent, [] if file.stem == "__init__" else [file.stem]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    name = ".".join(parts)
    if file.suffix != ".py" or "." in file.stem:
        raise ConfigError("SF1101", f"{path} is not a Python file that can be imported")
    _ROOTS.add(folder)
    module = importlib.import_module(name)
    found = getattr(module, "__file__", None)
    if found is None or not file.samefile(found):
        raise ConfigError(
            "SF1182",
            f"{path} would be module {name!r}, which is already {found or 'built in'}; give "
            "the file another name",
        )
    return module


def _import_named(path: Path) -> ModuleType:
    """Import by a module's name, as `python -m` takes it."""
    name = str(path)
    named = path.suffix != ".py" and all(part.isidentifier() for part in name.split("."))
    if named:
        _ROOTS.add(Path.cwd())
        try:
            there: Any = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # a package above it is missing
            there = None
        if there is not None:
            return importlib.import_module(name)
    raise ConfigError("SF1101", f"no such file{' or module' if named else ''}: {path}")


if __name__ == "__main__":  # only to test whether it loads: infra/dev/reload.py
    try:
        load_agents([Path(path) for path in sys.argv[1:]])
    except ConfigError as problem:
        sys.exit(f"surefoot: {problem}")
