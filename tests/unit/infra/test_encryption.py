"""Keys, envelopes, and the log's ports behind which payloads are encrypted."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from surefoot.cli import app as surefoot
from surefoot.infra.blobs.stores import FolderBlobs
from surefoot.infra.blobs.sweep import sweep
from surefoot.infra.encryption import cipher
from surefoot.infra.encryption.backend import EncryptedLog, EncryptedSourceLog
from surefoot.infra.encryption.blobs import EncryptedBlobs
from surefoot.infra.encryption.cipher import DataKey, Tampered
from surefoot.infra.encryption.envelope import Envelope
from surefoot.infra.encryption.keyring import Keyring, load_keyring, new_key, read_keys, write_keys
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.views.shard import _event
from surefoot.schemas.codec.container import read_rows
from surefoot.schemas.codec.payload_fields import is_concealed, is_sealed
from surefoot.schemas.pointer import pointer_to
from surefoot.state.errors import ConfigError, KeyMissing, StoreRefused, Unavailable
from surefoot.state.names.topics import AgentTopics, dead_topic
from surefoot.state.ports.log import ConsumerRecord, InputKind, Log, ProducerRecord
from surefoot.state.ports.sources import SourceLog
from surefoot.state.reading.archive import events_of, pack
from surefoot.state.reading.dead_letters import dead_letter, event_of
from surefoot.state.reading.deliveries import Delivery, delivery_out, read_delivery
from surefoot.state.records.encoding import dead_headers, start_out
from tests.support.archived import event
from tests.support.aws import REGION, aws_server, client

SECRET = "4111-1111-1111-1111"
PAYLOAD = json.dumps(SECRET).encode()
APP = "app"
TOPICS = AgentTopics(APP, "shop")


def envelope(*keys: str) -> Envelope:
    return Envelope(APP, Keyring({key: DataKey(key[-1:].encode() * 32) for key in keys}))


def start(payload: bytes = PAYLOAD) -> ProducerRecord:
    return start_out(APP, 1, "shop", "r1", payload, sent_ms=1)


def read(out: ProducerRecord, offset: int = 0) -> ConsumerRecord:
    return ConsumerRecord(out.topic, out.partition, offset, 1, out.key, out.value, out.headers)


# The cipher -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte", "place", "expected"),
    [
        (1, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (
            3,
            b"c2sp.org/XAES-256-GCM",
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    ],
)
def test_the_cipher_is_the_one_that_is_named(byte: int, place: bytes, expected: str) -> None:
    """The test vectors of C2SP."""
    key = DataKey(bytes([byte]) * 32)

    assert key.open(b"ABCDEFGHIJKLMNOPQRSTUVWX", bytes.fromhex(expected), place) == b"XAES-256-GCM"


def test_a_derived_key_is_left_before_its_nonces_can_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cipher, "_MESSAGES", 3)
    key = DataKey(b"1" * 32)
    nonces = [key.seal(b"same", b"")[0] for _ in range(7)]

    assert len(set(nonces)) == 7
    assert [len({n[:12] for n in nonces[at : at + 3]}) for at in (0, 3)] == [1, 1]
    assert len({nonce[:12] for nonce in nonces}) == 3


@pytest.mark.parametrize("nonce", [b"", b"n" * 12, b"n" * 25])
def test_a_nonce_of_another_length_is_no_error_of_the_library(nonce: bytes) -> None:
    with pytest.raises(Tampered):
        DataKey(b"1" * 32).open(nonce, b"s" * 20, b"")


# Records --------------------------------------------------------------------------------------


def test_only_what_has_payload_and_is_ours_is_sealed() -> None:
    ours = envelope("k1")
    foreign = start()._replace(topic="orders")
    tombstone = start()._replace(value=None)

    assert is_sealed(ours.seal(start()).value)
    assert ours.seal(foreign) is foreign
    assert ours.seal(tombstone) is tombstone
    sealed = ours.seal(start())
    assert ours.seal(sealed) is sealed
    assert envelope().seal(start()) == start()


def test_the_newest_key_writes_and_older_ones_open() -> None:
    old, both = envelope("k1"), envelope("k1", "k2")
    before, after = old.seal(start()), both.seal(start())

    assert both.open(read(before)).value == both.open(read(after)).value == start().value
    with pytest.raises(KeyMissing, match=r"SF2090.*'k2'"):
        old.open(read(after))


def test_the_text_of_a_dead_letter_is_sealed_too() -> None:
    ours = envelope("k1")
    told = dead_headers("step_raised", f"cannot charge {SECRET}", 1, "r1")
    out = start()._replace(topic=dead_topic(APP), headers=told)
    sealed = ours.seal(out)

    assert SECRET.encode() not in repr(sealed).encode()
    assert dead_letter(ours.show(read(sealed))).message == f"cannot charge {SECRET}"
    assert dead_letter(envelope().show(read(sealed))).message == "<encrypted:k1>"
    assert dead_letter(envelope().show(read(sealed))).code == "step_raised"


def test_an_input_of_any_bytes_is_buried_sealed_and_not_redriven_without_the_key() -> None:
    place = (("sf-dead-topic", b"t"), ("sf-dead-partition", b"0"), ("sf-dead-offset", b"7"))
    letter = ProducerRecord(dead_topic(APP), 0, b"k", PAYLOAD, place)
    ours = envelope("k1")
    sealed = read(ours.seal(letter))

    assert SECRET.encode() not in (sealed.value or b"")
    found = event_of(ours.show(sealed))
    assert found is not None
    assert found.value == PAYLOAD
    assert event_of(envelope().show(sealed)) is None


def test_a_delivery_without_its_key_has_no_body_to_map_again() -> None:
    delivery = Delivery(
        id="d1", source="github", at_ms=1, outcome="started", status=202, body=PAYLOAD
    )
    ours = envelope("k1")
    sealed = read(ours.seal(delivery_out(APP, 1, delivery)))

    assert read_delivery(ours.show(sealed).value) == delivery
    assert read_delivery(envelope().show(sealed).value).body is None


def test_it_is_told_once_that_a_sender_does_not_encrypt() -> None:
    ours = envelope("k1")
    with capture_logs() as logs:
        ours.open(read(start()))
        ours.open(read(start()))
        ours.open(read(ours.seal(start())))
        envelope().open(read(start()))

    assert [line["event"] for line in logs] == ["command_not_encrypted"]


# Who acts, who shows ---------------------------------------------------------------------------


class Polled:
    """A log that has these records to read."""

    def __init__(self, *batches: list[ConsumerRecord]) -> None:
        self._batches = list(batches)

    async def poll(self, _timeout_s: float) -> list[ConsumerRecord]:
        return self._batches.pop(0) if self._batches else []

    def position(self, _partition: int) -> int:
        return 9


class PolledLog(Polled):
    async def poll(self, timeout_s: float) -> Any:
        return [("commands", record) for record in await super().poll(timeout_s)]

    async def positions(self, _partition: int) -> dict[InputKind, int]:
        return {"commands": 9, "tasks": 9}


async def test_a_worker_without_the_key_gets_nothing_past_the_record() -> None:
    sealed = read(envelope("k1").seal(start()))
    log = EncryptedLog(cast("Log", PolledLog([sealed], [read(start())])), envelope("k2"))

    assert await log.positions(0) == {"commands": 9, "tasks": 9}
    for _ in range(3):
        with pytest.raises(KeyMissing, match="SF2090"):
            await log.poll(0.0)
    assert await log.positions(0) == {}


async def test_a_trigger_without_the_key_gets_nothing_past_the_record() -> None:
    sealed = read(envelope("k1").seal(start()))
    log = EncryptedSourceLog(cast("SourceLog", Polled([sealed], [read(start())])), envelope())

    assert log.position(0) == 9
    for _ in range(3):
        with pytest.raises(KeyMissing, match="SF2090"):
            await log.poll(0.0)
    assert log.position(0) is None


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "keys.json"
    write_keys(path, [await new_key("k1", "file", "", load_settings())])
    return load_settings(
        app=APP,
        log=f"sqlite:///{tmp_path / 'runs.db'}",
        partitions=1,
        encryption=path,
        blobs=str(tmp_path),
    )


@pytest.fixture
async def backend(settings: Settings) -> AsyncIterator[Backend]:
    async with open_backend(settings, SystemClock(), owner=True) as opened:
        async with opened.topics() as topics:
            await topics.apply(specs_for(["shop"], settings))
        yield opened


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("runs.db*"))


def keyless(settings: Settings) -> Settings:
    return settings.model_copy(update={"encryption": None})


async def test_what_is_appended_is_read_with_the_key_and_shown_without(
    settings: Settings, backend: Backend, tmp_path: Path
) -> None:
    await backend.appender().append(start(), "a start", deadline_s=60.0)
    (record,), _ = await backend.lookups(TOPICS.commands).page(0, 0, 1, lambda _: True)
    assert record.value == start().value
    assert SECRET.encode() not in contents(tmp_path)

    async with open_backend(keyless(settings), SystemClock()) as stranger:
        (record,), _ = await stranger.lookups(TOPICS.commands).page(0, 0, 1, lambda _: True)
        assert is_concealed(record.value)
        copied = start()._replace(value=record.value)
        with pytest.raises(KeyMissing, match="a copy was not written"):
            await stranger.appender().append(copied, "a copy", deadline_s=60.0)


async def test_blobs_that_a_sealed_record_may_need_are_not_swept_without_the_key(
    settings: Settings, backend: Backend, tmp_path: Path
) -> None:
    store = EncryptedBlobs(FolderBlobs(tmp_path / APP), settings)
    needed, unneeded = pointer_to(b"needed", 0), pointer_to(b"unneeded", 0)
    for pointer, content in ((needed, b"needed"), (unneeded, b"unneeded")):
        await store.put(pointer, content)
    await backend.appender().append(start(needed.encode()), "a start", deadline_s=60.0)

    async def swept(chosen: Settings, log: Backend) -> int:
        now_ms = SystemClock().now_ms()
        done = await sweep(chosen, log, store, now_ms=now_ms, keep_days=1, dry_run=False)
        return done.deleted

    async with open_backend(keyless(settings), SystemClock()) as stranger:
        with pytest.raises(KeyMissing, match="Nothing was deleted"):
            await swept(keyless(settings), stranger)
    assert await swept(settings, backend) == 1
    assert await store.get(needed) == b"needed"


async def test_blobs_are_stored_sealed_and_opened_under_their_own_pointer(
    settings: Settings, tmp_path: Path
) -> None:
    inner = FolderBlobs(tmp_path / "blobs")
    store = EncryptedBlobs(inner, settings)
    one, other, earlier = (pointer_to(each, 0) for each in (PAYLOAD, b"other", b"earlier"))
    await store.put(one, PAYLOAD)
    await inner.put(earlier, b"earlier")
    raw = await inner.get(one)
    assert raw is not None
    assert SECRET.encode() not in raw
    await inner.put(other, raw)

    assert await store.get(one) == PAYLOAD
    assert await store.get(earlier) == b"earlier"
    assert await store.get(other) == raw
    assert await store.get(pointer_to(b"nothing", 0)) is None
    with pytest.raises(StoreRefused, match="SF2090"):
        await EncryptedBlobs(inner, keyless(settings)).get(one)


def events(ours: Envelope) -> list[ConsumerRecord]:
    """Two of a run, as the archiver reads them."""
    values = [event("r1", "run.started", payload=PAYLOAD), event("r1", "run.completed", seq=1)]
    outs = [ProducerRecord(TOPICS.events, 0, b"r1", value, ()) for value in values]
    return [read(ours.seal(out), offset) for offset, out in enumerate(outs)]


def test_the_archive_keeps_what_is_sealed_and_shows_it_with_the_key() -> None:
    ours = envelope("k1")
    file = pack(TOPICS.events, 0, events(ours))
    rows = read_rows(file.events)[1]

    assert all(is_sealed(row["sealed"]) for row in rows)
    assert [row["type"] for row in rows] == ["run.started", "run.completed"]
    assert rows[0]["payload"] == b'"<encrypted:k1>"'
    opened = events_of(rows, "r1", TOPICS.events, ours.show)
    assert [each["payload"] for _, each in opened] == [PAYLOAD, None]
    shown = events_of(rows, "r1", TOPICS.events, envelope().show)
    assert [each["payload"] for _, each in shown] == [b'"<encrypted:k1>"', None]


def test_views_fold_events_whatever_they_hide() -> None:
    folded = [_event(record) for record in events(envelope("k1"))]

    assert [each and each["type"] for each in folded] == ["run.started", "run.completed"]


# Keys ------------------------------------------------------------------------------------------


def keys(*args: str | Path) -> str:
    done = CliRunner().invoke(surefoot, ["keys", *map(str, args)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_keys_are_added_used_and_listed(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    settings = load_settings(app=APP, encryption=file)

    keys("add", file, "k1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys("add", file, "k2")
    assert asyncio.run(load_keyring(settings)).newest == "k1"
    keys("use", file, "k2")
    ring = asyncio.run(load_keyring(settings))
    assert ring.newest == "k2"
    assert ring.get("k1") is not None
    listed = [json.loads(line) for line in keys("list", file, "--json").splitlines()]
    assert [(key["id"], key["encrypts"]) for key in listed] == [("k1", False), ("k2", True)]
    assert not any("secret" in key for key in listed)


@pytest.mark.parametrize(
    "args", [("add", "k1"), ("add", "a b"), ("add", ""), ("use", "k9")], ids="-".join
)
def test_a_wrong_id_changes_nothing(tmp_path: Path, args: tuple[str, str]) -> None:
    file = tmp_path / "keys.json"
    keys("add", file, "k1")
    before = file.read_bytes()
    done = CliRunner().invoke(surefoot, ["keys", args[0], str(file), args[1]])

    assert done.exit_code == 2
    assert "SF1092" in done.output
    assert file.read_bytes() == before


KEY = {"id": "k1", "provider": "file", "secret": base64.b64encode(b"1" * 32).decode()}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"keys": []}',
        json.dumps({"keys": [KEY, KEY]}),
        json.dumps({"keys": [KEY | {"secret": "MTIz"}]}),
        json.dumps({"keys": [KEY | {"secret": "not base64"}]}),
        json.dumps({"keys": [KEY | {"provider": "nobody"}]}),
        json.dumps({"keys": [KEY | {"id": "a b"}]}),
        json.dumps({"keys": [KEY | {"id": 1}]}),
        json.dumps({"keys": [KEY | {"more": "x"}]}),
        json.dumps({"keys": ["k1"]}),
    ],
    ids=range(11),
)
async def test_a_file_that_holds_no_keys_is_told(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="SF1090") as told:
        await load_keyring(load_settings(encryption=file))

    assert KEY["secret"] not in str(told.value)


async def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SF1090"):
        await load_keyring(load_settings(encryption=tmp_path / "none.json"))


@pytest.fixture
def aws() -> Iterator[Callable[..., Settings]]:
    with aws_server() as url:

        def chosen(**options: Any) -> Settings:
            return load_settings(app=APP, aws_region=REGION, aws_endpoint_url=url, **options)

        client(url, "kms").create_alias(
            AliasName="alias/surefoot",
            TargetKeyId=client(url, "kms").create_key()["KeyMetadata"]["KeyId"],
        )
        yield chosen


async def test_kms_wraps_a_key_and_unwraps_it_under_its_id_alone(
    aws: Callable[..., Settings], tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    made = await new_key("k1", "aws-kms", "alias/surefoot", aws())
    write_keys(file, [made])
    first, second = [await load_keyring(aws(encryption=file)) for _ in range(2)]
    sealed = Envelope(APP, first).seal(start())

    assert Envelope(APP, second).open(read(sealed)).value == start().value
    assert "secret" not in made
    write_keys(file, [made | {"id": "k2"}])
    with pytest.raises(ConfigError, match="SF1091"):
        await load_keyring(aws(encryption=file))
    write_keys(file, [made | {"wrapped": "not base64"}])
    with pytest.raises(ConfigError, match="SF1090"):
        await load_keyring(aws(encryption=file))


class _Transit(BaseHTTPRequestHandler):
    """As Vault's transit engine: a ciphertext opens with its own key and associated data alone."""

    secrets: ClassVar[dict[str, dict[str, str]]] = {}
    #: what it answers everything with, when it is set
    status: ClassVar[int] = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, _, engine, operation, key = self.path.split("/")
        place = f"{engine}/{key} {body['associated_data']}"
        if self.status != 200 or self.headers["X-Vault-Token"] != "root":
            self._answer(self.status if self.status != 200 else 403, {"errors": ["no"]})
        elif operation == "encrypt":
            wrapped = f"vault:v1:{len(self.secrets)}"
            self.secrets[wrapped] = {"place": place, "plaintext": body["plaintext"]}
            self._answer(200, {"data": {"ciphertext": wrapped}})
        elif self.secrets.get(body["ciphertext"], {}).get("place") == place:
            plaintext = self.secrets[body["ciphertext"]]["plaintext"]
            self._answer(200, {"data": {"plaintext": plaintext}})
        else:
            self._answer(400, {"errors": ["cipher: message authentication failed"]})

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Transit]]:
    kind = type("Transit", (_Transit,), {"secrets": {}, "status": 200})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    monkeypatch.setenv("VAULT_ADDR", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("VAULT_TOKEN", "root")
    try:
        yield kind
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@pytest.mark.parametrize("name", ["surefoot", "team-engine/surefoot"])
async def test_vault_wraps_a_key_and_unwraps_it_under_its_id_alone(
    vault: type[_Transit], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "keys.json"
    settings = load_settings(app=APP, encryption=file)
    await asyncio.to_thread(keys, "add", file, "k1", "--wrap", f"vault:{name}")
    (made,) = read_keys(file)
    first, second = [await load_keyring(settings) for _ in range(2)]
    sealed = Envelope(APP, first).seal(start())

    assert Envelope(APP, second).open(read(sealed)).value == start().value
    assert next(iter(vault.secrets.values()))["plaintext"] not in json.dumps(made)
    write_keys(file, [made | {"id": "k2"}])
    with pytest.raises(ConfigError, match=r"SF1091.*message authentication failed"):
        await load_keyring(settings)


async def test_a_vault_that_is_not_ready_is_no_wrong_setting(
    vault: type[_Transit], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(app=APP)
    for status in (429, 500, 503):
        vault.status = status
        with pytest.raises(Unavailable, match="SF1093"):
            await new_key("k1", "vault", "surefoot", settings)
    vault.status = 200
    monkeypatch.setenv("VAULT_TOKEN", "another")
    with pytest.raises(ConfigError, match=r"SF1091.*aws-kms:KEY or vault:KEY"):
        await new_key("k1", "nobody", "surefoot", settings)
    with pytest.raises(ConfigError, match=r"SF1091.*403"):
        await new_key("k1", "vault", "surefoot", settings)
    with pytest.raises(ConfigError, match="SF1091"):
        await new_key("k1", "vault", "a key", settings)
    monkeypatch.delenv("VAULT_ADDR")
    with pytest.raises(ConfigError, match="VAULT_ADDR"):
        await new_key("k1", "vault", "surefoot", settings)
