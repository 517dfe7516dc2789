from __future__ import annotations

import pytest

from pyromq.broker.metrics.names import boolean, is_system, message_type, version_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (407, "v4_9_7"),
        (213, "v4_0_0"),
        (212, "v4_0_0_snapshot"),
        (399, "v4_9_3"),
        (3, "3"),
        (-1, "-1"),
        (10_000, "10000"),
    ],
)
def test_versions(number: int, name: str) -> None:
    assert version_name(number) == name


def test_types_of_messages() -> None:
    assert message_type("orders", is_ordered=False) == "normal"
    assert message_type("orders", is_ordered=True) == "fifo"
    assert message_type("SCHEDULE_TOPIC_XXXX", is_ordered=False) == "delay"
    assert message_type("RMQ_SYS_TRANS_HALF_TOPIC", is_ordered=False) == "transaction"


def test_the_system() -> None:
    assert is_system("SCHEDULE_TOPIC_XXXX")
    assert is_system("orders", "TOOLS_CONSUMER")
    assert not is_system("orders", "g")
    assert not is_system("orders")
    assert [boolean(True), boolean(False)] == ["true", "false"]
