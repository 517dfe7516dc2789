"""Pure helpers on the frames of a chunk: runs of one request code, and late requests.

A chunk is all bytes that one socket read delivered; a run is consecutive frames of one request
code in a chunk. Called by `remoting.connection` for every chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FrameError,
    RawFrame,
    command_from,
)
from pyromq.remoting.service import LatePolicy

Hot = TypeVar("Hot")

#: Frames of a run. Between two runs the connection checks the size of the responses.
_MAX_RUN: Final = 256


def next_run(
    frames: list[RawFrame],
    start: int,
    hot_handlers: Mapping[int, Hot],
    max_runs: Mapping[int, int],
) -> tuple[Hot | None, int]:
    """Return the hot handler of the frame at `start`, if it has one, and the end of its run.

    Raises FrameError for a header that is not a request.
    """
    try:
        header = frames[start][1]
        code = header["code"]
        hot = hot_handlers.get(code)
        end = start + 1
        if hot is None or header.get("flag", 0) & FLAG_RESPONSE:
            return None, end
    except (KeyError, TypeError) as error:
        raise FrameError(f"header has no code or an invalid flag: {error}") from error
    limit = min(len(frames), start + max_runs.get(code, _MAX_RUN))
    try:
        while end < limit:
            header = frames[end][1]
            if header["code"] != code or header.get("flag", 0) & FLAG_RESPONSE:
                break
            end += 1
    except (KeyError, TypeError):
        return hot, end  # the next call reports the bad header
    return hot, end


def without_late(
    frames: list[RawFrame], waited: float, policy: LatePolicy
) -> tuple[list[RawFrame], list[bytes]]:
    """Split off the requests that `policy` refuses: the frames to serve, and the refusals."""
    kept: list[RawFrame] = []
    refusals: list[bytes] = []
    for number, frame in enumerate(frames):
        header = frame[1]
        code, flag = header.get("code"), header.get("flag", 0)
        refusal = (
            policy.refuse(code, waited, len(frames) - number - 1)
            if type(code) is int and type(flag) is int and not flag & FLAG_RESPONSE
            else None
        )
        if refusal is None:
            kept.append(frame)
        elif not flag & FLAG_ONEWAY:
            try:
                answer = command_from(frame).answer(refusal.code, refusal.remark)
            except FrameError:  # reported when the frame is handled
                kept.append(frame)
            else:
                refusals.append(answer.encode())
    return kept, refusals


def wants_answer(frame: RawFrame) -> bool:
    """Return whether the sender of a raw frame expects a response."""
    return not frame[1].get("flag", 0) & FLAG_ONEWAY
