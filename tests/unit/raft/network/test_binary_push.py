from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from pyromq.protocol.wire.frame import split_frames
from pyromq.raft.format import Columns, Run, join_entries
from pyromq.raft.messages import Code, PushRequest, PushResponse, PushType
from pyromq.raft.network.binary_push import (
    decode_answer,
    decode_push,
    encode_answer,
    encode_push,
    names_of,
)
from pyromq.raft.network.json_bodies import BodyError
from tests.support.damage import damaged

NAMES = names_of("g", "n1", "n0")
assert NAMES is not None
LEADERS = {NAMES: "n1"}


def run_of(first: int, count: int) -> Run:
    sizes = np.full(count, 60, np.int64)
    columns = Columns(first, np.full(count, 3, np.int64), np.arange(count) * 60 + 4096, sizes)
    return Run(first, count, 4096, join_entries(columns, [bytes(12)] * count))


PUSH = PushRequest(
    group="g",
    local_id="n1",
    remote_id="n0",
    leader_id="n1",
    term=3,
    type=PushType.APPEND,
    commit_index=6,
    run=run_of(7, 5),
)
ANSWER = PushResponse(
    code=Code.INCONSISTENT_STATE, term=3, index=7, count=5, begin_index=0, end_index=6
)


def body_of(push: PushRequest = PUSH) -> bytes:
    assert NAMES is not None
    frames, _, error = split_frames(b"".join(encode_push(NAMES, push, 77)))
    ((_, header, body),) = frames
    assert error is None
    assert header == {"code": 70010, "flag": 0, "opaque": 77}
    return body


def test_a_push_survives() -> None:
    assert decode_push(body_of(), "g", "n0", LEADERS) == PUSH


def test_an_answer_survives() -> None:
    frames, _, error = split_frames(encode_answer(ANSWER, 78))
    ((_, header, body),) = frames
    assert error is None
    assert header == {"code": 200, "flag": 1, "opaque": 78}
    assert decode_answer(body) == ANSWER


def test_an_unknown_code_of_a_later_version_is_unknown() -> None:
    frames, _, _ = split_frames(encode_answer(replace(ANSWER, code=999), 1))  # type: ignore[arg-type]
    assert decode_answer(frames[0][2]).code is Code.UNKNOWN


def test_names_that_do_not_fit_are_none() -> None:
    assert names_of("g" * 300, "n1", "n0") is None


@pytest.mark.parametrize("names", [("h", "n1", "n0"), ("g", "n2", "n0"), ("g", "n1", "n2")])
def test_a_push_of_others_is_refused(names: tuple[str, str, str]) -> None:
    head = names_of(*names)
    assert head is not None
    frames, _, _ = split_frames(b"".join(encode_push(head, PUSH, 1)))
    with pytest.raises(BodyError, match="not of this group"):
        decode_push(frames[0][2], "g", "n0", LEADERS)


@pytest.mark.parametrize(
    "run",
    [
        Run(8, 5, 4096, run_of(7, 5).data),
        Run(7, 0, 4096, run_of(7, 5).data),
        Run(7, 100, 4096, run_of(7, 5).data),
        Run(7, 1, 4096, b"x" * 100),
        Run(7, 1, 4096, b""),
        Run(7, 1, 4096, run_of(7, 1).data[:48]),
    ],
)
def test_a_head_that_lies_is_refused(run: Run) -> None:
    with pytest.raises(BodyError):
        decode_push(body_of(replace(PUSH, run=run)), "g", "n0", LEADERS)


def test_no_damage_passes() -> None:
    body, answer = body_of(), encode_answer(ANSWER, 1)[-45:]
    rng = random.Random(16)
    for _ in range(3000):
        bad = damaged(rng, body)
        if bad != body:
            with pytest.raises(BodyError):
                decode_push(bad, "g", "n0", LEADERS)
        bad = damaged(rng, answer)
        if bad != answer:
            with pytest.raises(BodyError):
                decode_answer(bad)
    for end in range(len(body)):
        with pytest.raises(BodyError):
            decode_push(body[:end], "g", "n0", LEADERS)
