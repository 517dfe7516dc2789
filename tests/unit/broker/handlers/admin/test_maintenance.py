from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from pyromq.broker.handlers.admin.maintenance import MaintenanceHandlers
from pyromq.broker.services.topic_deletion import TopicDeletion
from pyromq.protocol.names import SCHEDULE_TOPIC, TRANSACTION_OP_TOPIC
from pyromq.protocol.wire.bodies import TopicConfig, TopicList
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.fakes import FakeConnection

CONNECTION = FakeConnection()


@pytest.fixture
async def assembled(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    yield assembled
    await assembled.close()


@pytest.fixture
def handlers(assembled: AssembledBroker) -> MaintenanceHandlers:
    deleted = assembled.tables.deleted_topics
    deletion = TopicDeletion(assembled.topics, assembled.offsets, deleted, assembled.store)
    return MaintenanceHandlers(assembled.store, assembled.topics, deletion, assembled.parts.role)


def put(assembled: AssembledBroker, topic: str) -> None:
    """Store a message, even if its topic does not exist."""
    host = assembled.host
    assembled.store.put(assembled.store.queue(topic, 0), b"x", b"", 0, 0, 0, 0, host, 0)
    assembled.store.seal()


async def test_queues_of_deleted_topics(
    assembled: AssembledBroker, handlers: MaintenanceHandlers
) -> None:
    assembled.topics.update(TopicConfig("Kept", 1, 1))
    for topic in ("Kept", "Gone", "AlsoGone", SCHEDULE_TOPIC, TRANSACTION_OP_TOPIC):
        put(assembled, topic)

    request = RemotingCommand(RequestCode.CLEAN_UNUSED_TOPIC)
    answer = await handlers.clean_unused_topics(CONNECTION, request)

    assert answer.code == ResponseCode.SUCCESS
    assert assembled.store.queue_counts().keys() == {"Kept", SCHEDULE_TOPIC, TRANSACTION_OP_TOPIC}
    assert not (assembled.store.config.consume_queue_directory / "Gone").exists()


async def test_expired_queues_are_removed(
    assembled: AssembledBroker, handlers: MaintenanceHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = AsyncMock()
    monkeypatch.setattr(assembled.store.retention, "clean_expired_queues", clean)
    request = RemotingCommand(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    assert (await handlers.clean_expired_queues(CONNECTION, request)).code == ResponseCode.SUCCESS
    clean.assert_awaited_once_with()


async def test_expired_segments_are_deleted_at_any_hour(
    assembled: AssembledBroker, handlers: MaintenanceHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        assembled.store.retention, "execute_delete_files_manually", lambda: asked.append(True)
    )
    request = RemotingCommand(RequestCode.DELETE_EXPIRED_COMMITLOG)

    assert handlers.delete_expired_log(CONNECTION, request).code == ResponseCode.SUCCESS
    assert asked == [True]


async def test_system_topics(assembled: AssembledBroker, handlers: MaintenanceHandlers) -> None:
    request = RemotingCommand(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    topics = TopicList.decode(handlers.system_topics(CONNECTION, request).body).topic_list

    config = assembled.config
    assert {
        "TBW102",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        config.broker_name,
        config.broker_cluster_name,
        f"{config.broker_cluster_name}_REPLY_TOPIC",
    } < topics
    assert all(map(assembled.topics.is_system_topic, topics))
