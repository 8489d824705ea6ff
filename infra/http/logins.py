"""The logins of this user: the token of each gateway, in a file of its own that nobody else reads.

    $XDG_CONFIG_HOME/surefoot/logins/http%3A%2F%2F127.0.0.1%3A8787

The file's name is the gateway's address, as `gateway_address` spells it, so a token is found for no
other one. Source: XDG Base Directory Specification 0.8
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from surefoot.infra.runtime.atomic_files import write_whole
from surefoot.state.errors import ConfigError


def read_login(address: str, environ: Mapping[str, str]) -> str | None:
    """Return the token that is kept for this address, if one is.

    Raises: ConfigError — its file cannot be read, or others may read it too.
    """
    folder = _folder(environ)
    if folder is None:
        return None
    try:
        with _file(folder, address).open(encoding="ascii") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigError(
                    "SF1086", f"others may read {file.name}; type: surefoot login {address}"
                )
            return file.read().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        raise ConfigError("SF1086", f"cannot read the login of {address}: {error}") from error


def keep_login(address: str, token: str, environ: Mapping[str, str]) -> Path:
    """Keep the token in place of any for this address; returns its file, once it is durable.

    Raises: ConfigError — it cannot be written; the former one is still there.
    """
    folder = _folder(environ)
    if folder is None:
        raise ConfigError("SF1086", "there is no home folder to keep a login in")
    file = _file(folder, address)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, f"{token}\n".encode("ascii"), top=folder)  # for its owner only
    except OSError as error:
        raise ConfigError("SF1086", f"cannot keep the login of {address}: {error}") from error
    return file


def forget_login(address: str, environ: Mapping[str, str]) -> bool:
    """Forget the token of this address; returns whether there was one.

    Raises: ConfigError — it cannot be deleted.
    """
    folder = _folder(environ)
    if folder is None:
        return False
    try:
        _file(folder, address).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError("SF1086", f"cannot forget the login of {address}: {error}") from error
    return True


def _file(folder: Path, address: str) -> Path:
    return folder / quote(address, safe="")


def _folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the logins; None: this user has no place for one."""
    told = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(told):  # noqa: PTH117  (of a text)
        config = Path(told)
    elif home := environ.get("HOME"):
        config = Path(home) / ".config"
    else:
        return None
    return config / "surefoot" / "logins"
