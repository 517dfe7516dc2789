"""Names are those of the semantic conventions; values are those of the messages."""

from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.attributes import messaging_attributes, server_attributes

from pyromq.client import Message, MessageQueue, SendResult, SendStatus
from pyromq.client.message import KeptTags
from pyromq.otel import attributes
from pyromq.otel.attributes import OperationType

QUEUE = MessageQueue("orders", "broker-a", 3)


def test_names_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (messaging_attributes, server_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    ours = {
        value
        for name, value in vars(attributes).items()
        if name.isupper() and isinstance(value, str) and "." in value
    }
    assert {name for name in ours if not name.startswith("pyromq.")} - known == {"error.type"}
    operations = {each.value for each in messaging_attributes.MessagingOperationTypeValues}
    assert {each.value for each in OperationType} <= operations
    assert messaging_attributes.MessagingSystemValues.ROCKETMQ.value == "rocketmq"


def test_an_operation() -> None:
    assert attributes.of_operation("send", OperationType.SEND, "orders", "space") == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.rocketmq.namespace": "space",
    }


def test_a_plain_message() -> None:
    assert attributes.of_message(Message("orders", b"12345")) == {
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "normal",
    }


@pytest.mark.parametrize("keys", ["a b", ["a", "b"]])
def test_a_message_with_everything(keys: str | list[str]) -> None:
    message = Message("orders", b"x", tags=KeptTags("new"), keys=keys, ordering_key="o", flag=3)
    found = attributes.of_message(message)
    assert found == {
        "messaging.message.body.size": 1,
        "messaging.rocketmq.message.type": "fifo",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ["a", "b"],
        "messaging.rocketmq.message.group": "o",
    }
    assert type(found["messaging.rocketmq.message.tag"]) is str


def test_types_of_messages() -> None:
    delayed = Message("orders", b"x", delay_level=3, ordering_key="o")
    found = attributes.of_message(delayed)
    assert found["messaging.rocketmq.message.type"] == "delay"
    assert found["messaging.rocketmq.message.delay_time_level"] == 3
    half = attributes.of_message(Message("orders", b"x"), is_half=True)
    assert half["messaging.rocketmq.message.type"] == "transaction"


def test_results() -> None:
    result = SendResult("ID", "OFFSET-ID", QUEUE, 7, SendStatus.SEND_OK)
    where = {"server.address": "::1", "server.port": 10911}
    assert attributes.of_results([result], "[::1]:10911") == {
        **where,
        "messaging.destination.partition.id": "3",
        "messaging.message.id": "ID",
        "pyromq.message.queue_offset": 7,
    }
    assert attributes.of_results([result, result], "[::1]:10911") == {
        **where,
        "messaging.destination.partition.id": "3",
    }
    assert attributes.of_results([], "") == {}
