from __future__ import annotations

import dataclasses

from pyromq.broker.state import topic_json
from pyromq.broker.state.topic_json import TopicJson
from pyromq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
)


def topics(*names: str) -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper(
        {name: TopicConfig(name, 4, 8) for name in names}, DataVersion(1_700_000_000_000, 7)
    )


def test_both_forms_are_those_of_the_bodies() -> None:
    table = topics("a", "%RETRY%b", 'strange "ñame"\n')
    table.topic_config_table["c"] = TopicConfig(
        "c", 1, 2, 4, TopicFilterType.MULTI_TAG, topic_sys_flag=3, order=True
    )
    for wrapper in (table, topics()):
        for _ in range(2):  # the second time from kept pieces
            assert TopicJson().table(wrapper) == wrapper.encode()
            assert TopicJson().registration(wrapper) == RegisterBrokerBody(wrapper).encode()


def test_a_topic_that_was_replaced_is_encoded_anew() -> None:
    encoder, table = TopicJson(), topics("a", "b")
    encoder.table(table)
    changed = dataclasses.replace(table.topic_config_table["a"], perm=4)
    table.topic_config_table["a"] = changed
    del table.topic_config_table["b"]

    assert encoder.table(table) == table.encode()


def test_pieces_of_topics_that_are_gone_do_not_pile_up() -> None:
    encoder = TopicJson()
    for number in range(5 * topic_json._SPARE_PIECES):
        encoder.table(topics(f"T{number}"))

    assert len(encoder._pieces) <= topic_json._SPARE_PIECES + 3
