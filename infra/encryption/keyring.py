"""The data keys of a process, from the file that SUREFOOT_ENCRYPTION names.

    {"keys": [{"id": "2026-10", "provider": "aws-kms", "name": "alias/surefoot", "wrapped": "..."},
              {"id": "2026-11", "provider": "file", "secret": "..."}]}

The last key encrypts, each of them decrypts. A key of the provider `file` stands in it as it is;
any other is wrapped by its provider, which is asked once, at start-up: such a file is no secret,
and an outage of the provider stops nothing that runs.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from surefoot.infra.encryption.cipher import KEY_BYTES, DataKey
from surefoot.infra.encryption.providers import WRAPPING, provider
from surefoot.infra.runtime.atomic_files import write_whole
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError

#: one key of the file, as JSON
KeyJson = dict[str, str]

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELDS = {"file": {"id", "provider", "secret"}, "wrapped": {"id", "provider", "name", "wrapped"}}


class Keyring:
    """Data keys by id. Without any: nothing is encrypted, and nothing encrypted can be read."""

    def __init__(self, keys: Mapping[str, DataKey] | None = None) -> None:
        """`keys`: the last one encrypts."""
        self._keys = dict(keys or {})
        #: id of the key that encrypts; None: there is none
        self.newest = next(reversed(self._keys), None)

    def get(self, key_id: str) -> DataKey | None:
        return self._keys.get(key_id)


async def load_keyring(settings: Settings) -> Keyring:
    """Return the keys that the settings name. Asks the providers of wrapped ones.

    Raises: ConfigError — the file cannot be used, or a provider refuses; Unavailable — a provider
        does not answer.
    """
    if settings.encryption is None:
        return Keyring()
    entries = read_keys(settings.encryption)
    if not entries:
        raise _unusable(settings.encryption, "it has no key; `surefoot keys add` adds one")
    keys: dict[str, DataKey] = {}
    for entry in entries:
        secret = await _secret(entry, settings)
        if len(secret) != KEY_BYTES:
            raise _unusable(settings.encryption, f"key {entry['id']} has not {KEY_BYTES} bytes")
        keys[entry["id"]] = DataKey(secret)
    return Keyring(keys)


async def _secret(entry: KeyJson, settings: Settings) -> bytes:
    if entry["provider"] == "file":
        return base64.b64decode(entry["secret"])
    return await provider(entry["provider"], settings).unwrap(
        entry["id"], entry["name"], entry["wrapped"]
    )


async def new_key(key_id: str, by: str, name: str, settings: Settings) -> KeyJson:
    """Make a key. `by`: its provider; `name`: of the provider's own key, which wraps it.

    Raises: ConfigError — the id is malformed, or the provider refuses; Unavailable.
    """
    if not _ID.fullmatch(key_id):
        raise ConfigError(
            "SF1092", f"a key's id is 1 to 64 of A-Z a-z 0-9 . _ -; got {key_id[:100]!r}"
        )
    if by not in ("file", *WRAPPING):
        wraps = " or ".join(f"{each}:KEY" for each in WRAPPING)
        raise ConfigError("SF1091", f"there is no provider {by[:100]!r}; use {wraps}")
    if by == "file":
        secret = base64.b64encode(os.urandom(KEY_BYTES)).decode()
        return {"id": key_id, "provider": by, "secret": secret}
    wrapped = await provider(by, settings).new(key_id, name)
    return {"id": key_id, "provider": by, "name": name, "wrapped": wrapped}


def read_keys(path: Path) -> list[KeyJson]:
    """Return the keys of a file, wrapped as they are. Raises ConfigError."""
    try:
        told: Any = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _unusable(path, error.strerror or "it cannot be read") from None
    except ValueError:
        raise _unusable(path, "it is not JSON") from None
    match told:
        case {"keys": [*entries]} if all(_is_key(entry) for entry in entries):
            pass
        case _:
            raise _unusable(path, 'it is not {"keys": [...]} as `surefoot keys` writes it')
    ids = [entry["id"] for entry in entries]
    if len(set(ids)) < len(ids):
        raise _unusable(path, "two keys have the same id")
    return entries


def write_keys(path: Path, entries: Sequence[KeyJson]) -> None:
    """Replace the file; only its owner may read the new one. Raises ConfigError."""
    content = json.dumps({"keys": list(entries)}, indent=2) + "\n"
    try:
        write_whole(path, content.encode(), top=path.parent)
    except OSError as error:
        raise _unusable(path, error.strerror or "it cannot be written") from None


def _is_key(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(each, str) for each in entry.values()):
        return False
    by = entry.get("provider")
    fields = _FIELDS["file" if by == "file" else "wrapped"]
    if entry.keys() != fields or not (by == "file" or by in WRAPPING):
        return False
    if by == "file":
        try:
            base64.b64decode(entry["secret"], validate=True)
        except binascii.Error:
            return False
    return _ID.fullmatch(entry["id"]) is not None


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError("SF1090", f"the keys of {path} cannot be used: {why}")
