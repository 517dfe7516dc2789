from __future__ import annotations

import json
from typing import Any

import pytest

from pyromq.broker.state.copied_tables import (
    CopyError,
    copied_delay_offsets,
    copied_groups,
    copied_offsets,
    copied_topics,
    is_usable,
)
from pyromq.protocol.wire.bodies import (
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

VERSION = DataVersion(1000, 7)


def topics(*more: TopicConfig, **renamed: TopicConfig) -> bytes:
    table = {topic.topic_name: topic for topic in (TopicConfig("SELF_TEST_TOPIC"), *more)}
    return TopicConfigSerializeWrapper(table | renamed, VERSION).encode()


def groups(*members: SubscriptionGroupConfig, **renamed: SubscriptionGroupConfig) -> bytes:
    table = {group.group_name: group for group in members}
    return SubscriptionGroupWrapper(table | renamed, VERSION).encode()


def test_valid_tables_are_returned_as_they_are() -> None:
    copy = copied_topics(topics(TopicConfig("%RETRY%g", 0, 65536, 15), TopicConfig("broker.a")))
    assert copy.table.data_version == VERSION
    assert copy.table.topic_config_table.keys() == {"SELF_TEST_TOPIC", "%RETRY%g", "broker.a"}
    assert copy.left_out == []
    wanted = SubscriptionGroupConfig("g", retry_max_times=-1)
    assert copied_groups(groups(wanted)).table == SubscriptionGroupWrapper({"g": wanted}, VERSION)
    offsets = copied_offsets(b'{"offsetTable":{"t@g":{0:5,"1":-1},"t@h":{}}}')
    assert offsets.table == {"t@g": {0: 5, 1: -1}, "t@h": {}}
    assert copied_delay_offsets(b'{"offsetTable":{1:5,18:0}}') == {1: 5, 18: 0}
    assert copied_delay_offsets(b'{"offsetTable":{}}') == {}


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "a b", "a\0b", "é", ".hidden", "x" * 263]
)
def test_unusable_names_are_left_out(name: str) -> None:
    assert not is_usable(name)
    copy = copied_topics(topics(TopicConfig("t"), TopicConfig(name)))
    assert copy.table.topic_config_table.keys() == {"SELF_TEST_TOPIC", "t"}
    assert copy.left_out == [name]
    of_groups = copied_groups(groups(SubscriptionGroupConfig("g"), SubscriptionGroupConfig(name)))
    assert of_groups.table.subscription_group_table.keys() == {"g"}
    assert of_groups.left_out == [name]
    table = json.dumps({"offsetTable": {f"t@{name}": {}, f"{name}@g": {}, "t@g": {}}})
    assert copied_offsets(table.encode()).table == {"t@g": {}}


def test_a_pair_without_a_separator_is_left_out() -> None:
    copy = copied_offsets(b'{"offsetTable":{"tg":{0:1},"t@g":{0:2}}}')
    assert (copy.table, copy.left_out) == ({"t@g": {0: 2}}, ["tg"])


def test_only_pairs_that_changed_are_decoded_again() -> None:
    first = copied_offsets(b'{"offsetTable":{"t@g":{0:5},"t@h":{0:6,1:7},"u@g":{}}}')
    assert first.table == {"t@g": {0: 5}, "t@h": {0: 6, 1: 7}, "u@g": {}}
    again = copied_offsets(b'{"offsetTable":{"u@g":{},"t@h":{0:6,1:8},"t@g":{0:5}}}', first.pieces)
    assert again.table == {"t@h": {0: 6, 1: 8}}
    assert copied_offsets(b'{"offsetTable":{"t@h":{0:6,1:8}}}', again.pieces).table == {}
    assert copied_offsets(b'{"offsetTable":{}}', again.pieces).table == {}


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsetTable":{"t@g":{0:5},"t},@h":{0:6},"u@g":{0:7}}}',
        b'{"offsetTable": {"t@g":{0:5},"u@g":{0:7}}}',
        b'{"dataVersion":{"counter":1},"offsetTable":{"t@g":{0:5},"u@g":{0:7}}}',
        b'{"offsetTable":{"t@g":{0:5},"u@g":{0:7}},"other":{"x":{}}}',
        b'{"offsetTable":{"t@g":{"0":"5"}, "u@g":{0:7}}}',
    ],
)
def test_every_form_of_the_offsets_is_read(body: bytes) -> None:
    first = copied_offsets(body)
    assert first.table.items() >= {"t@g": {0: 5}, "u@g": {0: 7}}.items()
    changed = copied_offsets(body.replace(b"7", b"8"), first.pieces).table
    assert changed["u@g"] == {0: 8}


def test_many_pairs_are_decoded_in_batches() -> None:
    table = {f"t{number}@g": {number % 8: number} for number in range(3000)}
    body = ConsumerOffsetSerializeWrapper(table).encode()
    assert copied_offsets(body).table == table
    bad = body.replace(b"{7:2999}", b"{7:-2999}")
    with pytest.raises(CopyError, match="t2999@g"):
        copied_offsets(bad)


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ({"read_queue_nums": -1}, "queues"),
        ({"write_queue_nums": 65_537}, "queues"),
        ({"perm": 16}, "permission 16"),
        ({"perm": -1}, "permission -1"),
    ],
)
def test_a_topic_out_of_range_refuses_the_table(topic: dict[str, Any], fault: str) -> None:
    with pytest.raises(CopyError, match=rf"topic t: .*{fault}"):
        copied_topics(topics(TopicConfig("t", **topic)))


def test_an_entry_under_another_name_refuses_the_table() -> None:
    with pytest.raises(CopyError, match="topicName"):
        copied_topics(topics(t=TopicConfig("other")))
    with pytest.raises(CopyError, match="groupName"):
        copied_groups(groups(g=SubscriptionGroupConfig("other")))


def test_a_group_out_of_range_refuses_the_table() -> None:
    for queues in (-1, 65_537):
        with pytest.raises(CopyError, match="retry queues"):
            copied_groups(groups(SubscriptionGroupConfig("g", retry_queue_nums=queues)))


@pytest.mark.parametrize("body", [b'{"t@g":{-1:1}}', b'{"t@g":{65536:1}}', b'{"t@g":{0:-2}}'])
def test_an_offset_out_of_range_refuses_the_table(body: bytes) -> None:
    with pytest.raises(CopyError, match="t@g"):
        copied_offsets(b'{"offsetTable":%b}' % body)


@pytest.mark.parametrize("body", [b"{0:1}", b"{1001:1}", b"{1:-1}", b"{-3:1}"])
def test_a_delay_level_out_of_range_refuses_the_table(body: bytes) -> None:
    with pytest.raises(CopyError, match="delay level"):
        copied_delay_offsets(b'{"offsetTable":%b}' % body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"offsetTable":',
        b'{"offsetTable":null}',
        b'{"offsetTable":[1]}',
        b'{"offsetTable":{"t@g":5}}',
        b'{"offsetTable":{"t@g":{"x":5},1:"x"}}',
        b'{"offsetTable":{1:99999999999999999999,"t@g":{0:99999999999999999999}}}',
        b'{"topicConfigTable":{},"subscriptionGroupTable":{}}',
        b'{"dataVersion":{},"topicConfigTable":{},"subscriptionGroupTable":{}}',
        b'{"dataVersion":{"counter":"x"},"topicConfigTable":{},"subscriptionGroupTable":{}}',
        b"[" * 100_000,
        b'{"offsetTable":' * 5000,
    ],
)
def test_garbled_answers_are_refused_by_every_decoder(body: bytes) -> None:
    for decode in (copied_topics, copied_groups, copied_offsets, copied_delay_offsets):
        with pytest.raises(ValueError):  # noqa: PT011 - CopyError or BodyError
            decode(body)


def test_a_table_that_no_broker_has_is_refused() -> None:
    only = TopicConfigSerializeWrapper({"t": TopicConfig("t")}, VERSION)
    with pytest.raises(CopyError, match="SELF_TEST_TOPIC"):
        copied_topics(only.encode())
    with pytest.raises(CopyError, match="no groups"):
        copied_groups(groups())
