"""The program that computes CRCs: its answers, by function and as a process."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from array import array
from pathlib import Path
from zlib import crc32

import pytest

from pyromq.protocol import crc
from pyromq.store import crc_process
from pyromq.store.crc_process import ANSWER, NUMBER, REQUEST, count_right, serve

MASK = 0x7FFFFFFF
CONTENT = bytes(number * number % 253 for number in range(20_000))
SPANS = [(0, 0), (0, 1), (10, 5000), (4999, 5001), (100, 9000)]


def request(path: Path | None, base: int, size: int, crcs: list[int]) -> bytes:
    name = os.fsencode(path) if path is not None else b""
    begins, ends = zip(*SPANS, strict=True)
    head = REQUEST.pack(len(name), base, size, len(SPANS))
    numbers = array(NUMBER, [*begins, *ends, *crcs])
    return head + name + numbers.tobytes()


def right_crcs(base: int) -> list[int]:
    return [crc32(CONTENT[base + begin : base + end]) & MASK for begin, end in SPANS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a file, one with a \n in it"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("wrong", [0, 1, 3, 4])
def test_the_first_wrong_one_counts(wrong: int) -> None:
    crcs = right_crcs(0)
    begins, ends = (array(NUMBER, numbers) for numbers in zip(*SPANS, strict=True))
    view = memoryview(CONTENT)
    assert count_right(crc32, view, begins, ends, array(NUMBER, crcs), MASK) == len(SPANS)
    crcs[wrong] ^= 1 << wrong
    crcs[-1] ^= 0x1000
    assert count_right(crc32, view, begins, ends, array(NUMBER, crcs), MASK) == wrong


def test_one_request_after_the_other(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(20_000))
    wrong = right_crcs(5000)
    wrong[2] ^= 1
    requests = b"".join(
        (
            request(path, 0, 9000, right_crcs(0)),
            request(None, 5000, 9000, right_crcs(5000)),
            request(None, 5000, 9000, wrong),
            request(other, 0, 9000, right_crcs(0)),
            request(path, 10_000, 9000, right_crcs(10_000)),
        )
    )
    answers = io.BytesIO()
    serve(io.BytesIO(requests), answers, MASK, crc32)
    given = [right for (right,) in ANSWER.iter_unpack(answers.getvalue())]
    # An empty body and one of zeros are alike everywhere.
    assert given == [5, 5, 2, 2, 5]


def test_a_request_without_a_file() -> None:
    with pytest.raises(ValueError, match="names no file"):
        serve(io.BytesIO(request(None, 0, 9000, right_crcs(0))), io.BytesIO(), MASK, crc32)


@pytest.mark.parametrize("library", [crc.LIBRARY, ""])
def test_as_a_process_of_its_own(path: Path, library: str) -> None:
    command = [sys.executable, "-I", "-S", crc_process.__file__, str(MASK), library]
    requests = request(path, 0, 9000, right_crcs(0)) + request(None, 1, 9000, right_crcs(0))
    done = subprocess.run(command, input=requests, capture_output=True, check=True)
    assert done.stdout == ANSWER.pack(5) + ANSWER.pack(1)
    assert done.stderr == b""


@pytest.mark.parametrize("cut", [1, 30, 60])
def test_it_ends_without_an_answer_when_a_request_is_cut(path: Path, cut: int) -> None:
    command = [sys.executable, "-I", "-S", crc_process.__file__, str(MASK)]
    requests = request(path, 0, 9000, right_crcs(0))
    done = subprocess.run(command, input=requests[:-cut], capture_output=True, check=False)
    assert done.returncode != 0
    assert done.stdout == b""
