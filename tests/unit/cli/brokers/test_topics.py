from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.cli.brokers import topics as module
from pyromq.cli.brokers.child import Created
from pyromq.cli.brokers.topics import TopicSpread
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies import TopicConfig
from tests.support.brokers import local_broker, small_store
from tests.support.patience import until

NEW = Created("new", 4, 6, 0)


@asynccontextmanager
async def cluster(tmp_path: Path, count: int = 2) -> AsyncIterator[tuple[NameServer, list[Broker]]]:
    server = NameServer(
        NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kvConfig.json")
        )
    )
    await server.start()
    brokers = [
        Broker(
            local_broker(broker_name=f"b{number}", namesrv_addr=f"127.0.0.1:{server.port}"),
            small_store(tmp_path / f"b{number}"),
        )
        for number in range(count)
    ]
    try:
        for broker in brokers:
            await broker.start()
        yield server, brokers
    finally:
        for broker in brokers:
            await broker.stop()
        await server.stop()


@asynccontextmanager
async def spread(server: NameServer, addresses: Mapping[str, str]) -> AsyncIterator[TopicSpread]:
    topics = TopicSpread(server, lambda: addresses)
    await topics.start()
    try:
        yield topics
    finally:
        await topics.stop()


async def test_a_topic_of_one_broker_is_created_on_the_others(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, (first, second)):
        addresses = {"b0": first.address, "b1": second.address}
        async with spread(server, addresses) as topics:
            first.topics.add_creation_listener(
                lambda topic: topics.created(
                    "b0", Created(topic.topic_name, topic.write_queue_nums, topic.perm, 0)
                )
            )
            created = first.topics.create_for_send("new", "TBW102", 4)
            await until(lambda: "new" in second.topics)
            assert second.topics.get("new") == created


async def test_a_broker_that_has_the_topic_keeps_its_own(tmp_path: Path) -> None:
    own = TopicConfig("new", 16, 16)
    async with cluster(tmp_path, 3) as (server, (first, second, third)):
        addresses = {f"b{n}": each.address for n, each in enumerate((first, second, third))}
        second.topics.update(own)
        await until(lambda: server.routes.route("new"))
        async with spread(server, addresses) as topics:
            topics.created("b0", NEW)
            await until(lambda: "new" in third.topics)
        assert second.topics.get("new") == own
        assert "new" not in first.topics, "the creator has it already"


async def test_retry_topics_and_topics_of_administrators_stay_where_they_are(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as (server, (first, second)):
        addresses = {"b0": first.address, "b1": second.address}
        async with spread(server, addresses) as topics:
            told: list[str] = []
            first.topics.add_creation_listener(lambda topic: told.append(topic.topic_name))
            first.topics.update(TopicConfig("admin", 4, 4))
            first.topics.create_for_send_back("%RETRY%g", 1)
            assert told == []
            topics.created("b0", Created("%RETRY%g", 1, 6, 0))
            topics.created("b0", NEW)
            await until(lambda: "new" in second.topics)
        assert "%RETRY%g" not in second.topics


async def test_brokers_that_are_down_or_refuse_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as (server, (first, second)):
        addresses = {"b0": first.address, "b1": second.address, "b2": "127.0.0.1:1"}
        async with spread(server, addresses) as topics:
            topics.created("b0", Created("il/legal", 4, 6, 0))
            topics.created("b0", NEW)
            await until(lambda: "new" in second.topics)
            await until(lambda: caplog.text.count("topic new not created on b2") == 1)
    assert "topic il/legal not created on b1" in caplog.text


async def test_too_many_topics_are_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_WAITING", 2)
    topics = TopicSpread(NameServer(NamesrvConfig(listen_port=0)), dict)
    for number in range(3):
        topics.created("b0", Created(f"t{number}", 4, 6, 0))
    await topics.stop()
    assert "topic t2 of b0 not created on the other brokers: 2 topics wait" in caplog.text
