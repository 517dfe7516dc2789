from __future__ import annotations

import dataclasses
import itertools

from pyromq.broker.state import topic_json
from pyromq.broker.state.topic_json import TopicJson
from pyromq.protocol.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
)

versions = itertools.count()


def topics(*names: str) -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper(
        {name: TopicConfig(name, 4, 8) for name in names},
        DataVersion(1_700_000_000_000, next(versions)),
    )


def test_both_forms_equal_the_encoded_bodies() -> None:
    table = topics("a", "%RETRY%b", 'strange "ñame"\n')
    table.topic_config_table["c"] = TopicConfig(
        "c", 1, 2, 4, TopicFilterType.MULTI_TAG, topic_sys_flag=3, order=True
    )
    encoder = TopicJson()
    for wrapper in (table, topics(), table):
        assert encoder.table(wrapper) == wrapper.encode()
        assert encoder.registration(wrapper) == RegisterBrokerBody(wrapper).encode()


def test_the_same_version_is_joined_once() -> None:
    encoder, table = TopicJson(), topics("a")

    assert encoder.table(table) is encoder.table(topics_of(table))


def topics_of(table: TopicConfigSerializeWrapper) -> TopicConfigSerializeWrapper:
    """Return another snapshot of the same table."""
    return TopicConfigSerializeWrapper(dict(table.topic_config_table), table.data_version)


def test_a_replaced_topic_is_encoded_again() -> None:
    encoder, table = TopicJson(), topics("a", "b")
    encoder.table(table)
    changed = dataclasses.replace(table.topic_config_table["a"], perm=4)
    table.topic_config_table["a"] = changed
    del table.topic_config_table["b"]
    table.data_version = DataVersion(1_700_000_000_000, next(versions))

    assert encoder.table(table) == table.encode()


def test_cached_json_of_deleted_topics_is_dropped() -> None:
    encoder = TopicJson()
    for number in range(5 * topic_json._MAX_SPARE_ENTRIES):
        encoder.table(topics(f"T{number}"))

    assert len(encoder._cached) <= topic_json._MAX_SPARE_ENTRIES + 3
