"""The program that examines pieces: its responses, without the process around it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.store.recovery.piece import Rules
from pyromq.store.recovery.piece_process import (
    REQUEST,
    RESPONSE,
    Response,
    decode_response,
    encode_rules,
    response_rest,
    serve,
)
from tests.support.records import BORN_TIME, make_record

RULES = Rules(1 << 20, DelayLevels("1s 5s"), check_crc=True, after_crash=True)


def request(path: Path | None, position: int, base: int, size: int) -> bytes:
    name = os.fsencode(path) if path is not None else b""
    return REQUEST.pack(len(name), position, base, size) + name


def responses_to(*requests: bytes) -> list[Response]:
    written = io.BytesIO()
    serve(io.BytesIO(b"".join(requests)), written, RULES)
    written.seek(0)
    responses = []
    while head := written.read(RESPONSE.size):
        responses.append(decode_response(head, written.read(response_rest(head))))
    return responses


def log_of(path: Path, *topics: str, base: int = 0, wrong: bool = False) -> int:
    """A file with a record of each topic; returns its size."""
    data = b""
    for number, topic in enumerate(topics):
        properties = b"TAGS\x01a\x02DELAY\x012"
        data += make_record(
            topic=topic,
            queue_offset=number,
            physical_offset=base + len(data),
            properties=properties,
        )
    if wrong:
        data = data.replace(b"body", b"b0dy", 1)
    path.write_bytes(data)
    return len(data)


def test_entries_queue_by_queue(tmp_path: Path) -> None:
    path = tmp_path / "a file, one with a \n in it"
    size = log_of(path, "b", "a", "b", SCHEDULE_TOPIC, "thé", base=4000)
    (response,) = responses_to(request(path, 0, 4000, size))
    assert response.records == 5
    assert response.runs is not None
    runs = {run.topic: run for run in response.runs}
    assert runs.keys() == {"a", "b", SCHEDULE_TOPIC, "thé"}
    assert runs["b"].offsets.tolist() == [0, 2]
    assert not runs["b"].is_consecutive
    assert runs["a"].is_consecutive
    places = sorted(place for run in response.runs for place, _, _ in run.entries.tolist())
    assert places[0] == 4000
    assert {run.entries["tags_code"][0] for run in (runs["a"], runs["b"])} == {ord("a")}
    assert runs[SCHEDULE_TOPIC].entries["tags_code"].tolist() == [BORN_TIME + 5000]


def test_one_request_after_the_other(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    size = log_of(one, "a", "a", "b")
    log_of(other, "a", "a", "b", wrong=True)
    responses = responses_to(
        request(one, 0, 0, size),
        request(None, 0, 0, size),
        request(None, 0, 1, size),  # they say that they stand elsewhere
        request(other, 0, 0, size),
        request(one, 0, 0, size - 1),
        request(one, 0, 0, 10),
    )
    assert [response.records for response in responses] == [3, 3, 0, 0, 2, 0]
    assert [response.runs is None for response in responses] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_records_that_cause_a_log_line_are_declined(tmp_path: Path) -> None:
    size = log_of(tmp_path / "log", "a", "not/possible")
    assert responses_to(request(tmp_path / "log", 0, 0, size)) == [Response(0, None)]


def test_a_request_without_a_file() -> None:
    with pytest.raises(ValueError, match="names no file"):
        responses_to(request(None, 0, 0, 100))


def test_rules_are_an_argument() -> None:
    assert encode_rules(RULES) == '[1048576,"1s 5s",true,true]'
