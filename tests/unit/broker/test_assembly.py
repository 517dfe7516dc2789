from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.assembly import assemble
from pyromq.broker.hooks import Hooks
from pyromq.broker.routes import Pool
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.store.config import BrokerRole
from tests.support.requests import pull_request, send_request
from tests.unit.broker.assembled import AssembledBroker, Client, served

#: Every request that RocketMQ 4.9.7's broker knows, and the pulls of 5.x' lite consumers. Those of
#: access control have a handler that refuses them.
SERVED = {
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.END_TRANSACTION,
    RequestCode.GET_ALL_CONSUMER_FILTER,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_TOPIC_DELETION,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_REPLICATION_STATUS,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.HEART_BEAT,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.QUERY_MESSAGE,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.VIEW_MESSAGE_BY_ID,
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    broker = AssembledBroker(tmp_path)
    yield broker
    await broker.close()


async def test_every_request_of_rocketmq_is_served(broker: AssembledBroker) -> None:
    routes = broker.assembly.routes

    assert {route.code for route in routes} == SERVED
    assert all(isinstance(route.code, RequestCode) for route in routes)
    assert (
        broker.server.service.handlers.keys() | broker.server.service.hot_handlers.keys() == SERVED
    )


async def test_hot_sends_have_a_slow_path_and_pulls_need_none(broker: AssembledBroker) -> None:
    routes = broker.assembly.routes

    assert routes.hot.keys() & routes.plain.keys() == {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    }
    assert routes.hot.keys() - routes.plain.keys() == {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
    assert routes.max_runs.keys() == {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}


async def test_every_handler_of_a_family_has_a_route(broker: AssembledBroker) -> None:
    routes = broker.assembly.routes
    methods = [inspect.unwrap(handler) for handler in routes.plain.values()]
    used = {getattr(method, "__func__", None) for method in methods}
    for family in {type(method.__self__) for method in methods if inspect.ismethod(method)}:
        for name, function in inspect.getmembers(family, inspect.isfunction):
            if name.startswith("_") or "request" not in inspect.signature(function).parameters:
                continue
            assert function in used, f"{family.__name__}.{name} serves nothing"


async def test_queries_change_nothing(broker: AssembledBroker) -> None:
    changes = ("UPDATE", "DELETE", "CLEAN", "RESET", "CLONE", "SEND", "LOCK", "END", "REGISTER")
    queries = broker.assembly.routes.queries

    assert RequestCode.QUERY_MESSAGE in queries
    for code in queries:
        assert not any(word in RequestCode(code).name for word in changes), RequestCode(code).name


async def test_requests_belong_to_the_pools_of_rocketmq(broker: AssembledBroker) -> None:
    by_pool = {pool: set[int]() for pool in Pool}
    for code, pool in broker.assembly.routes.pools.items():
        by_pool[pool].add(code)

    assert by_pool == {
        Pool.SEND: {
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.CONSUMER_SEND_MSG_BACK,
        },
        Pool.PULL: {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE},
        Pool.HEARTBEAT: {RequestCode.HEART_BEAT},
        Pool.TRANSACTION: {RequestCode.END_TRANSACTION},
    }


async def test_a_draining_broker_refuses_sends_and_serves_the_rest(
    broker: AssembledBroker,
) -> None:
    broker.put(b"x")
    client = Client(served(broker.assembly.draining_service), ("127.0.0.1", 40404))

    refused, served_pull = client.exchange(send_request(opaque=1), pull_request(opaque=2))

    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert served_pull.code == ResponseCode.SUCCESS


async def test_the_slow_path_of_a_hot_send_meets_the_hooks_once(broker: AssembledBroker) -> None:
    seen: list[int] = []

    class Log:
        def before_request(self, _: str, request: RemotingCommand) -> None:
            seen.append(request.opaque)

        def after_response(self, *_: object) -> None:
            """Nothing to note."""

    assembly = assemble(dataclasses.replace(broker.parts, hooks=Hooks(rpc=[Log()])))
    client = Client(served(assembly.service), ("127.0.0.1", 40404))

    client.exchange(send_request(opaque=1, topic="New"), send_request(opaque=2, topic="New"))

    assert seen == [1, 2]


async def test_a_change_of_settings_reaches_every_part(
    broker: AssembledBroker,
) -> None:
    await broker.parts.live_config.update({"waitTimeMillsInSendQueue": "400"})

    policy = broker.assembly.service.late_requests
    assert policy is not None
    assert policy.refuse(RequestCode.SEND_MESSAGE, 0.3, 0) is None
    assert policy.refuse(RequestCode.SEND_MESSAGE, 0.4, 0) is not None
    assert broker.lanes.send.wait_limit_ms == 400


async def test_a_replica_refuses_sends_and_creates_no_topic(tmp_path: Path) -> None:
    replica = AssembledBroker(tmp_path, broker_role=BrokerRole.SLAVE)

    answer = replica.fast.ask(send_request(queueId="0"))

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark is not None
    assert answer.remark.startswith("service not available now")
    assert "T" not in replica.topics
    assert replica.store.max_physical_offset == 0
    await replica.close()
