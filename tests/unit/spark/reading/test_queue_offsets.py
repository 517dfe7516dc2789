"""Offsets as JSON: round trips, a stable order, and invalid input."""

from __future__ import annotations

import json

import pytest

from pyromq.spark.origins.origin import Queue
from pyromq.spark.reading.queue_offsets import (
    OffsetsError,
    name_queues,
    offsets_from_dict,
    offsets_from_json,
    offsets_to_dict,
    parse_queue_key,
    queues_from_json,
)

A0 = Queue("Orders", "broker-a", 0)
A10 = Queue("Orders", "broker-a", 10)
B0 = Queue("Payments", "b:with:colons", 0)


def test_round_trip() -> None:
    offsets = {B0: 3, A10: 2, A0: 2**62}
    kept = offsets_to_dict(offsets)
    assert kept == {
        "Orders": {"broker-a:0": 2**62, "broker-a:10": 2},
        "Payments": {"b:with:colons:0": 3},
    }
    assert offsets_from_dict(json.loads(json.dumps(kept))) == offsets


def test_equal_offsets_are_equal_text() -> None:
    there, back = {A0: 1, A10: 2, B0: 3}, {B0: 3, A10: 2, A0: 1}
    assert json.dumps(offsets_to_dict(there)) == json.dumps(offsets_to_dict(back))


def test_no_offsets() -> None:
    assert offsets_to_dict({}) == {}
    assert offsets_from_dict({}) == {}


def test_json_of_a_user() -> None:
    assert offsets_from_json('{"Orders": {"broker-a:0": -2, "broker-a:10": 7}}') == {A0: -2, A10: 7}
    assert queues_from_json('{"Orders": ["broker-a:10", "broker-a:0", "broker-a:0"]}') == [A0, A10]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "invalid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "not a JSON object"),
        ('{"T": 3}', "'T' needs queues"),
        ('{"T": {"0": 3}}', "'0' of topic 'T' is not a queue"),
        ('{"T": {"a:": 3}}', "'a:' of topic 'T'"),
        ('{"T": {"a:-1": 3}}', "'a:-1' of topic 'T'"),
        ('{"T": {"a:1": "3"}}', "'3' for queue T@a:1 is not an offset"),
        ('{"T": {"a:1": 1.5}}', "1.5 for queue"),
        ('{"T": {"a:1": true}}', "True for queue"),
        ('{"T": {"a:1": 9223372036854775808}}', "is not an offset"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(OffsetsError, match=said):
        offsets_from_json(text)


@pytest.mark.parametrize("text", ['{"T": {"a:0": 1}}', '{"T": [0]}', '{"T": ["a"]}', "nothing"])
def test_refused_queues(text: str) -> None:
    with pytest.raises(OffsetsError):
        queues_from_json(text)


def test_a_key_that_is_not_text() -> None:
    with pytest.raises(OffsetsError, match="7 of topic"):
        parse_queue_key("T", 7)


def test_names_for_messages() -> None:
    queues = [Queue("T", "a", number) for number in range(7)]
    assert name_queues(queues[:2]) == "T@a:0, T@a:1"
    assert name_queues(queues) == "T@a:0, T@a:1, T@a:2, T@a:3, T@a:4 and 2 others"
