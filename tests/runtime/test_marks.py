"""Marks of ranks that still answer, and the store over HTTP that keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gradcomp.adapter_api import HttpStore, Marks


class Keys:
    """A store in memory, which may be lost."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lost = False

    def set(self, key: str, value: bytes) -> None:
        self._check()
        self.values[key] = value

    def get(self, key: str) -> bytes | None:
        self._check()
        return self.values.get(key)

    def _check(self) -> None:
        if self.lost:
            raise OSError("the launcher has ended")


def marks_of(store: Keys) -> list[Marks]:
    return [Marks(store, "p", rank, range(3)) for rank in range(3)]


def test_a_lasting_mark_counts_at_any_time() -> None:
    first, second, _ = marks_of(Keys())
    second.answer()
    assert list(first.looks(0)) == [[2]]
    assert list(first.looks(0, [1])) == [[]]


def test_a_renewed_mark_counts_from_the_first_look_on() -> None:
    first, second, third = marks_of(Keys())
    second.renew()
    looks = first.looks(60)
    assert next(looks) == [1, 2]
    second.renew()
    assert next(looks) == [2]
    third.answer()
    assert list(looks) == [[]]


def test_ranks_that_wait_see_each_other() -> None:
    first, second, _ = marks_of(Keys())
    found: list[list[int]] = []
    waits = [
        threading.Thread(target=lambda own=own: found.append(own.wait_for_renewals(0.5)))
        for own in (first, second)
    ]
    for wait in waits:
        wait.start()
    for wait in waits:
        wait.join()
    assert found == [[2], [2]]


def test_a_wait_that_is_over_names_nobody() -> None:
    assert marks_of(Keys())[0].wait_for_renewals(60, over=lambda: True) == []


def test_a_lost_store_names_nobody() -> None:
    store = Keys()
    first = marks_of(store)[0]
    looks = first.looks(60)
    assert next(looks) == [1, 2]
    store.lost = True
    first.answer()
    first.renew()
    assert list(looks) == [[]]


class _Handler(BaseHTTPRequestHandler):
    values: dict[str, bytes]

    def do_PUT(self) -> None:
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        value = self.values.get(self.path)
        self.send_response(500 if "damaged" in self.path else 404 if value is None else 200)
        self.end_headers()
        self.wfile.write(value or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    handler = type("Handler", (_Handler,), {"values": {}})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/scope"
        server.shutdown()


def test_http_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    store = HttpStore(url, 5.0)
    assert store.get("a") is None
    store.set("a", b"\x00value")
    assert store.get("a") == b"\x00value"
    assert HttpStore(f"{url}/other", 5.0).get("a") is None
    with pytest.raises(OSError, match="500"):
        store.get("damaged")


def test_http_store_that_is_gone() -> None:
    with pytest.raises(OSError, match=r"^\[Errno 111\] Connection refused$"):
        HttpStore("http://127.0.0.1:1", 5.0).get("a")
