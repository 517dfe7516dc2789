from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints
from unittest.mock import create_autospec

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.routes import QUERIES, Handlers, Routes, build_routes, with_body_limits
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.remoting.server import Connection

FAMILIES: dict[str, type[Any]] = get_type_hints(Handlers)


def families() -> Handlers:
    return Handlers(
        **{name: create_autospec(kind, instance=True) for name, kind in FAMILIES.items()}
    )


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
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_TOPIC_CONFIG,
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


def test_everything_that_must_be_served_is() -> None:
    routes = build_routes(families())

    assert routes.hot.keys() | routes.plain.keys() == SERVED
    assert all(isinstance(code, RequestCode) for code in (*routes.hot, *routes.plain))


def test_every_hot_send_has_its_plain_handler_behind_it() -> None:
    routes = build_routes(families())

    assert routes.hot.keys() - routes.plain.keys() == {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }


def test_no_handler_serves_a_code_twice_or_is_forgotten() -> None:
    handlers = families()
    routes = build_routes(handlers)

    served: list[Callable[..., object]] = [*routes.hot.values(), *routes.plain.values()]
    used = {id(inspect.unwrap(handler)) for handler in served}
    for family, kind in FAMILIES.items():
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or "request" not in inspect.signature(method).parameters:
                continue
            handler = getattr(getattr(handlers, family), name)
            assert id(handler) in used, f"{kind.__name__}.{name} serves nothing"


def test_bodies_that_are_no_messages_are_limited() -> None:
    config = BrokerConfig(
        broker_ip1="127.0.0.1",
        broker_ip2="127.0.0.1",
        max_request_body_size=10,
        max_heartbeat_body_size=20,
    )
    served = RemotingCommand(0)
    routes = build_routes(families())
    routes = Routes(routes.hot, dict.fromkeys(routes.plain, lambda *_: served))
    limited = with_body_limits(routes, config)
    assert limited.hot == routes.hot
    assert limited.plain.keys() == routes.plain.keys()
    connection = create_autospec(Connection, instance=True)
    larger = {RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ}
    for code, handler in limited.plain.items():
        if RequestCode(code).name.startswith("SEND_"):
            assert handler is routes.plain[code]
            continue
        limit = 20 if code in larger else 10
        assert handler(connection, RemotingCommand(code, body=b"x" * limit)) is served
        key = "maxHeartbeatBodySize" if code in larger else "maxRequestBodySize"
        fault = f"body of request {code} has {limit + 1} bytes, limit {limit} ({key})"
        with pytest.raises(RequestError, match=re.escape(fault)):
            handler(connection, RemotingCommand(code, body=b"x" * (limit + 1)))


def test_queries_are_served_and_change_nothing() -> None:
    routes = build_routes(families())

    assert routes.plain.keys() >= QUERIES
    changes = ("UPDATE", "DELETE", "CLEAN", "RESET", "CLONE", "SEND", "LOCK", "END", "REGISTER")
    for code in QUERIES:
        assert not any(word in code.name for word in changes), code.name
