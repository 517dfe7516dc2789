from __future__ import annotations

import pytest

from pyromq.protocol import names


@pytest.mark.parametrize("name", ["a", "Topic_1-x", "%RETRY%group", "%DLQ%g|x", "A" * 127])
def test_legal_topics(name: str) -> None:
    assert names.topic_fault(name) is None


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "blank"),
        (" \t", "blank"),
        ("../../etc", "illegal characters"),
        ("a b", "illegal characters"),
        ("a\n", "illegal characters"),
        ("主题", "illegal characters"),
        ("a" * 128, "limit 127"),
    ],
)
def test_illegal_topics(name: str, fault: str) -> None:
    assert fault in (names.topic_fault(name) or "")


def test_groups_may_be_longer() -> None:
    assert names.group_fault("g" * 255) is None
    assert "limit 255" in (names.group_fault("g" * 256) or "")
    assert "illegal" in (names.group_fault("g/../h") or "")
    assert "blank" in (names.group_fault("") or "")


def test_system_topics() -> None:
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_anything")
    assert not names.is_system_topic("orders")
    assert names.TOPICS_CLOSED_TO_SENDERS < names.SYSTEM_TOPICS
    # Clients may send to the template, to traces and to the benchmark's topic.
    open_topics = names.SYSTEM_TOPICS - names.TOPICS_CLOSED_TO_SENDERS
    assert open_topics == {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}


def test_derived_names() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dead_letter_topic("g") == "%DLQ%g"
    assert names.reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"
