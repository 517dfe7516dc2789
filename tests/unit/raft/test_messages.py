from __future__ import annotations

import dataclasses

import pytest

from pyromq.raft.format import Run
from pyromq.raft.messages import NONE, Code, Entry, PushRequest, PushType, VoteResult


def push(*indexes: int, run: Run | None = None) -> PushRequest:
    entries = tuple(Entry(index, 1, index * 50, 50, b"") for index in indexes)
    return PushRequest(
        group="g",
        local_id="n1",
        remote_id="n0",
        leader_id="n1",
        term=1,
        type=PushType.APPEND,
        commit_index=0,
        entries=entries,
        run=run,
    )


def test_a_push_knows_its_first_and_last_index() -> None:
    assert (push(3, 4, 5).first_index, push(3, 4, 5).last_index) == (3, 5)
    assert (push().first_index, push().last_index) == (NONE, NONE)
    assert (push(3, 4, 5).count, push().count) == (3, 0)


def test_a_push_of_a_run_knows_the_same() -> None:
    request = push(run=Run(7, 2, 400, bytes(120)))
    assert (request.first_index, request.last_index, request.count) == (7, 8, 2)


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        push(1).term = 2  # type: ignore[misc]


def test_enums_travel_by_java_s_names_and_numbers() -> None:
    assert all(result.name == result.value for result in VoteResult)
    assert Code(406) is Code.INCONSISTENT_STATE
