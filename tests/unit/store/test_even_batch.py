"""A batch that is put at once is, byte by byte, what message by message makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store import even_batch
from pyromq.store.results import PutError
from tests.support.stores import BORN_HOST, BORN_HOST_V6, BORN_TIME, TOPIC, open_store

SHARED = b"WAIT\x01true\x02CLUSTER\x01c"
LARGE = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 1000 * CONSUME_QUEUE_ENTRY_SIZE,
}


def messages(count: int = 100, body: int = 50, properties: bytes = b"n\x01#") -> bytes:
    return b"".join(
        encode_inner_message(
            b"%*d" % (body, number), properties.replace(b"#", b"%05d" % number), number - 7
        )
        for number in range(count)
    )


def log_and_queue(
    root: Path, batch: bytes, properties: bytes, born_host: bytes, monkeypatch: pytest.MonkeyPatch
) -> tuple[bytes, bytes, list[int]]:
    store = open_store(root, **LARGE)
    try:
        monkeypatch.setattr("pyromq.store.chunk.now_ms", lambda: 10**12)
        queue = store.queue(TOPIC, 3)
        offsets = store.put_batch(queue, batch, properties, 0, BORN_TIME, born_host, 0)
        offsets += store.put_batch(queue, batch, properties, 0, BORN_TIME, born_host, 0)
        store.seal()
        assert queue.next_offset == len(offsets)
    finally:
        store.stop()
    (log,) = (root / "commitlog").iterdir()
    (entries,) = (root / "consumequeue" / TOPIC / "3").iterdir()
    return log.read_bytes(), entries.read_bytes(), offsets


@pytest.mark.parametrize(
    ("batch", "shared", "is_even"),
    [
        (messages(), SHARED, True),
        (messages(), b"", True),
        (messages(70, 2), SHARED, True),
        (messages(properties=b"k\x01#\x02TAGS\x01TagA"), SHARED, True),
        (messages(properties=b"k\x01#\x02TAGS\x01T#"), SHARED, False),
        (messages(properties=b"TAGS\x01a\x02k\x01#"), SHARED, False),
        (messages(properties=b"k\x01#\x02TAGS\x01a\x02"), SHARED, False),
        (messages(properties=b"k\x01#\x02"), SHARED, False),
        (messages(properties=b""), SHARED, False),
        (messages(63), SHARED, False),
        (messages() + messages(1, 51), SHARED, False),
        (messages(60, 50) + messages(60, 49, b"n\x011#"), SHARED, False),
        (messages(), b"TAGS\x01all", False),
    ],
)
@pytest.mark.parametrize("born_host", [BORN_HOST, BORN_HOST_V6], ids=["IPv4", "IPv6"])
def test_both_ways_make_the_same_bytes(
    batch: bytes,
    shared: bytes,
    is_even: bool,
    born_host: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    real = even_batch.even_records

    def seen(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        made.append(found)
        return found

    monkeypatch.setattr("pyromq.store.chunk.even_records", seen)
    at_once = log_and_queue(tmp_path / "1", batch, shared, born_host, monkeypatch)
    assert any(made) == is_even
    monkeypatch.setattr("pyromq.store.chunk.even_records", lambda *_: None)
    one_by_one = log_and_queue(tmp_path / "2", batch, shared, born_host, monkeypatch)
    assert at_once == one_by_one


@pytest.mark.parametrize(
    "batch",
    [
        messages()[:-1],
        messages()[:-30] + bytes(30),
        messages()[: 78 * 40] + b"\xff" * 78 * 40,
        bytes(5000),
        b"\xff" * 5000,
    ],
)
def test_torn_batches_are_refused_as_before(batch: bytes, tmp_path: Path) -> None:
    store = open_store(tmp_path, **LARGE)
    try:
        queue = store.queue(TOPIC, 0)
        with pytest.raises(PutError):
            store.put_batch(queue, batch, SHARED, 0, BORN_TIME, BORN_HOST, 0)
        assert queue.next_offset == 0
    finally:
        store.stop()


def test_properties_that_become_too_long_are_refused_as_before(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LARGE)
    batch = messages(40, 2, b"n\x01#" + b"x" * 32_750)
    try:
        with pytest.raises(PutError):
            store.put_batch(store.queue(TOPIC, 0), batch, SHARED, 0, BORN_TIME, BORN_HOST, 0)
    finally:
        store.stop()
