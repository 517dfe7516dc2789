"""Outcomes: RocketMQ's names, and errors that say what happened."""

from __future__ import annotations

from pyromq.store.results import GetResult, GetStatus, PutError, PutStatus


def test_names_are_rocketmq_s() -> None:
    assert {status.name for status in PutStatus} - {"NO_BUFFER"} == {
        "PUT_OK",
        "FLUSH_DISK_TIMEOUT",
        "FLUSH_SLAVE_TIMEOUT",
        "SLAVE_NOT_AVAILABLE",
        "SERVICE_NOT_AVAILABLE",
        "CREATE_MAPEDFILE_FAILED",
        "MESSAGE_ILLEGAL",
        "PROPERTIES_SIZE_EXCEEDED",
        "OS_PAGECACHE_BUSY",
        "UNKNOWN_ERROR",
    }
    assert {status.name for status in GetStatus} - {"NOT_IN_MEMORY"} == {
        "FOUND",
        "NO_MATCHED_MESSAGE",
        "MESSAGE_WAS_REMOVING",
        "OFFSET_FOUND_NULL",
        "OFFSET_OVERFLOW_BADLY",
        "OFFSET_OVERFLOW_ONE",
        "OFFSET_TOO_SMALL",
        "NO_MATCHED_LOGIC_QUEUE",
        "NO_MESSAGE_IN_QUEUE",
    }


def test_a_put_error_says_status_and_reason() -> None:
    error = PutError(PutStatus.MESSAGE_ILLEGAL, "too long")
    assert str(error) == "MESSAGE_ILLEGAL: too long"
    assert (error.status, error.reason) == (PutStatus.MESSAGE_ILLEGAL, "too long")


def test_results_share_nothing() -> None:
    first = GetResult(GetStatus.FOUND, 1, 0, 2)
    first.pieces.append(b"x")
    second = GetResult(GetStatus.FOUND, 1, 0, 2)
    assert (second.pieces, second.size, second.count, second.suggest_replica) == ([], 0, 0, False)
