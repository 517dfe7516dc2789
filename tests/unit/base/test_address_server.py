from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from pyromq.base import address_server
from pyromq.base.address_server import AddressServerError, fetch, url_of


class AddressServer:
    """A web server with one answer."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"10.0.0.1:9876;10.0.0.2:9876\n"
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.domain = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server() -> Iterator[AddressServer]:
    server = AddressServer()
    yield server
    server.close()


def test_urls() -> None:
    assert url_of("addresses.example", "nsaddr") == "http://addresses.example:8080/rocketmq/nsaddr"
    assert url_of("addresses.example:80", "eu") == "http://addresses.example:80/rocketmq/eu"


def test_the_first_line_counts(server: AddressServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # not used
    url = url_of(server.domain, "nsaddr")
    assert fetch(url) == "10.0.0.1:9876;10.0.0.2:9876"
    server.body = b"\r\n 10.0.0.3:9876 \r\nanything\r\n"
    assert fetch(url) == "10.0.0.3:9876"
    assert server.paths == ["/rocketmq/nsaddr"] * 2


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, b"10.0.0.1:9876", "answered with status 404"),
        (500, b"", "answered with status 500"),
        (204, b"", "answered with status 204"),
        (200, b"", "answered with an empty line"),
        (200, b" \n\n", "answered with an empty line"),
        (200, b"x" * 70_000, "answered with more than 65536 bytes"),
    ],
)
def test_bad_answers(server: AddressServer, status: int, body: bytes, reason: str) -> None:
    server.status, server.body = status, body
    with pytest.raises(AddressServerError, match=f"{server.domain}/rocketmq/g {reason}"):
        fetch(url_of(server.domain, "g"))


def test_no_answer(server: AddressServer) -> None:
    server.close()
    with pytest.raises(AddressServerError, match=r"does not answer: .*refused"):
        fetch(url_of(server.domain, "g"))
    server.__init__()  # type: ignore[misc] # the fixture closes it again


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a/b", ""])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(AddressServerError, match="is not the URL of an address server"):
        fetch(url)


def test_an_unusable_host_is_reported() -> None:
    with pytest.raises(AddressServerError, match="does not answer"):
        fetch(url_of("127.0.0.1:port", "g"))
    assert address_server.FETCH_SECONDS == 120
