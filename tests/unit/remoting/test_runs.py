from __future__ import annotations

import pytest

from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FrameError,
    FrameReader,
    RawFrame,
    RequestError,
)
from pyromq.remoting.runs import next_run, wants_answer, without_late


def frame(code: object = 1, flag: int = 0, opaque: int = 0) -> RawFrame:
    return (0, {"code": code, "flag": flag, "opaque": opaque}, b"")


def test_a_run_ends_with_another_code_an_answer_or_its_limit() -> None:
    frames = [frame(), frame(), frame(2), frame(), frame(flag=FLAG_RESPONSE), frame(3)]
    hot = {1: "one", 2: "two"}

    assert next_run(frames, 0, hot, {}) == ("one", 2)
    assert next_run(frames, 0, hot, {1: 1}) == ("one", 1)
    assert next_run(frames, 2, hot, {}) == ("two", 3)
    assert next_run(frames, 3, hot, {}) == ("one", 4)
    assert next_run(frames, 4, hot, {}) == (None, 5)
    assert next_run(frames, 5, hot, {}) == (None, 6)
    assert next_run([frame()] * 1000, 0, hot, {}) == ("one", 256)


def test_a_bad_header_ends_a_run_and_is_reported_at_its_turn() -> None:
    frames: list[RawFrame] = [frame(), (0, {}, b"")]

    assert next_run(frames, 0, {1: "one"}, {}) == ("one", 1)
    with pytest.raises(FrameError, match="no code"):
        next_run(frames, 1, {1: "one"}, {})


class Policy:
    shortest_limit = 1.0

    def refuse(self, code: int, waited: float, queue_size: int) -> RequestError | None:
        if code != 1:
            return None
        return RequestError(ResponseCode.SYSTEM_BUSY, f"{waited:g} s, {queue_size} wait")


def test_late_requests_are_refused_and_everything_else_is_kept() -> None:
    kept = [frame(2), frame(flag=FLAG_RESPONSE), frame("1"), (0, {"code": 1, "opaque": "x"}, b"")]
    frames = [frame(opaque=7), frame(flag=FLAG_ONEWAY), *kept]

    assert without_late(frames, 2.0, Policy())[0] == kept
    (refusal,) = FrameReader().feed(b"".join(without_late(frames, 2.0, Policy())[1]))
    assert (refusal.opaque, refusal.code) == (7, ResponseCode.SYSTEM_BUSY)
    assert refusal.remark == "2 s, 5 wait"


def test_only_oneway_requests_want_no_answer() -> None:
    assert wants_answer((0, {}, b""))
    assert wants_answer(frame(flag=0))
    assert not wants_answer(frame(flag=FLAG_ONEWAY))
    assert not wants_answer(frame(flag=FLAG_ONEWAY | FLAG_RESPONSE))
