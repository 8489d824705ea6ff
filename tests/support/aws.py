"""AWS for tests: moto's server, spoken to over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import boto3
import httpx
import pytest
from moto.server import ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
REGION = "eu-west-1"


@contextmanager
def aws_server() -> Iterator[str]:
    """The URL of a server of its own, on a free port; the environment has keys for it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():
                patch.setenv(name, value)
            host, port = server.get_host_and_port()
            url = f"http://{host}:{port}"
            # All servers of a process show the same buckets and queues.
            httpx.post(f"{url}/moto-api/reset", timeout=60).raise_for_status()
            boto3.client("sts", endpoint_url=url, region_name=REGION).get_caller_identity()
            yield url
    finally:
        server.stop()


def client(url: str, service: str) -> Any:
    return boto3.client(service, endpoint_url=url, region_name=REGION)


class _Strict(BaseHTTPRequestHandler):
    """A store that speaks S3 as it was before checksums came with every request: what has one, in a
    header or as a trailer, it refuses."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}
    #: what it answers everything with, when it is set
    refuses: ClassVar[tuple[int, str] | None] = None

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self._takes():
            self.objects[self.path] = content
            self._answer(200)

    def do_GET(self) -> None:
        if not self._takes():
            return
        found = self.objects.get(self.path)
        if found is None:
            self._answer(404, _error("NoSuchKey"))
        else:
            self._answer(200, found)

    def do_DELETE(self) -> None:
        if self._takes():
            self.objects.pop(self.path, None)
            self._answer(204)

    def _takes(self) -> bool:
        names = {name.lower() for name in self.headers}
        chunked = "aws-chunked" in self.headers.get("Content-Encoding", "")
        if self.refuses is not None:
            status, code = self.refuses
            self._answer(status, _error(code))
        elif chunked or any("checksum" in name or "trailer" in name for name in names):
            self._answer(501, _error("NotImplemented"))
        else:
            return True
        return False

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()


@contextmanager
def strict_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[_Strict]]]:
    """The URL of a store that refuses checksums, and what it has and says."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    kind = type("Strict", (_Strict,), {"objects": {}, "refuses": None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", kind
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
