from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from pyromq.nameserver.registration import SLICE_TOPICS, Registration, RegistrationReader
from pyromq.protocol.wire.bodies import (
    BodyError,
    DataVersion,
    RegisterBrokerBody,
    RegistrationTooLargeError,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

Result = TypeVar("Result")


def reader(max_size: int = 1 << 20, max_topics: int = 10_000) -> RegistrationReader:
    return RegistrationReader(max_size, max_topics, lambda _, table: dict(table))


def body(count: int) -> RegisterBrokerBody:
    topics = {f"t{number}": TopicConfig(f"t{number}", 3, 4) for number in range(count)}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(topics, DataVersion(7, 8)), ["f:1"])


def run(steps: Generator[None, None, Result]) -> tuple[int, Result]:
    """How often it lets others have their turn, and what comes out."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def read(data: bytes, *, compressed: bool = False, **limits: int) -> Registration:
    steps = reader(**limits).read("b", data, compressed=compressed, topics_only=False)
    return run(steps)[1]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_is_read_in_slices(compressed: bool) -> None:
    whole = body(5 * SLICE_TOPICS + 1)
    steps = reader().read(
        "b", whole.encode(compress=compressed), compressed=compressed, topics_only=False
    )
    turns, registration = run(steps)
    assert turns >= 5
    assert registration == Registration(whole.topic_config_serialize_wrapper, ["f:1"])


def test_topics_that_are_known_are_left_out() -> None:
    known = RegistrationReader(1 << 20, 100, lambda _, table: {"t1": table["t1"]})
    steps = known.read("b", body(3).encode(), compressed=False, topics_only=False)
    assert set(run(steps)[1].topics.topic_config_table) == {"t1"}


def test_the_form_of_old_brokers() -> None:
    topics = body(3).topic_config_serialize_wrapper
    steps = reader().read("b", topics.encode(), compressed=True, topics_only=True)
    assert run(steps)[1] == Registration(topics, None)


@pytest.mark.parametrize(
    "value",
    [
        b"[]",
        b"null",
        b'{"topicConfigSerializeWrapper":[]}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":null}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":1}}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":1}}',
        b'{"filterServerList":{}}',
    ],
)
def test_a_body_of_another_shape_is_an_error(value: bytes) -> None:
    with pytest.raises(BodyError):
        read(value)


@pytest.mark.parametrize("value", [b"{}", b'{"topicConfigSerializeWrapper":null}'])
def test_what_is_missing_has_its_default(value: bytes) -> None:
    assert read(value) == Registration(TopicConfigSerializeWrapper(), [])


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("limits", [{"max_size": 999}, {"max_topics": 99}])
def test_limits(compressed: bool, limits: dict[str, Any]) -> None:
    data = body(100).encode(compress=compressed)
    assert len(read(data, compressed=compressed).topics.topic_config_table) == 100
    with pytest.raises(RegistrationTooLargeError):
        read(data, compressed=compressed, **limits)
