"""The log of a member: old segments and entries as one stream, and what readers may see."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.message.entry import ENTRIES, RECORDS
from pyromq.store.log.agreed_log import AgreedLog
from pyromq.store.message_store import MessageStore
from pyromq.store.results import PutError, PutStatus
from tests.support.agreed_stores import commit, log_of, open_leader
from tests.support.stores import SEGMENT, TOPIC, bodies, open_store, put


def mixed(root: Path) -> MessageStore:
    """A store that had two segments of a commit log before it joined a group."""
    old = open_store(root)
    for _ in range(3):
        put(old, b"o" * 30_000)
    old.stop()
    store = open_leader(root)
    for _ in range(5):
        put(store, b"n" * 30_000)
    store.seal()
    commit(store)
    return store


def log_in(store: MessageStore) -> AgreedLog:
    log = store._log
    assert isinstance(log, AgreedLog)
    return log


def test_old_segments_and_entries_are_one_stream(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    log = log_in(store)
    bases = [file.base for file in log.segments.files]
    assert bases == [number * SEGMENT for number in range(5)]
    assert [log.framing_at(base) for base in bases] == [RECORDS] * 2 + [ENTRIES] * 3
    assert log.segments.find(2 * SEGMENT - 1) is log.segments.files[1]
    assert log.segments.find(2 * SEGMENT) is log.segments.files[2]
    assert log.segments.find(9 * SEGMENT) is None
    assert log_of(store).begin_position == 2 * SEGMENT
    assert [body[:1] for body in bodies(store)] == [b"o"] * 3 + [b"n"] * 5
    store.stop()


def test_the_old_segments_expire_first(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    log = log_in(store)
    for number in range(3):
        file = log.take_first()
        assert file.base == number * SEGMENT
        file.unlink()
        assert log.min_offset == (number + 1) * SEGMENT
    assert log_of(store).begin_position == 3 * SEGMENT
    assert log_of(store).begin_index == 2
    store.stop()
    again = open_leader(tmp_path, term=2)
    assert again.min_offset(TOPIC, 0) == 5
    assert len(bodies(again)) == 3
    again.stop()


def test_nothing_above_the_committed_end_is_read(tmp_path: Path) -> None:
    store = open_leader(tmp_path)
    first = put(store, b"one")
    second = put(store, b"two")
    store.seal()
    commit(store, 0)
    log = log_in(store)
    assert log.append_position == log_of(store).written > log.watermarks.written
    assert len(log.read(first, SEGMENT)) == second - 48 - first
    assert not log.read(second, 10)
    log.flush()
    assert log.watermarks.flushed == log.watermarks.written
    store.stop()


def test_a_full_disk_refuses_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_leader(tmp_path)
    entries = log_of(store)

    def full(_: object) -> tuple[int, int]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(entries, "make_room", full)
    monkeypatch.setattr(entries, "reserve", full)
    with pytest.raises(PutError) as caught:
        put(store, b"one")
    assert caught.value.status is PutStatus.CREATE_MAPEDFILE_FAILED
    with pytest.raises(PutError):
        log_in(store).reserve([100])
    assert "no room for" in caplog.text
    store.stop()
