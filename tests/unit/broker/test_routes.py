from __future__ import annotations

import inspect
from typing import Any, get_type_hints
from unittest.mock import create_autospec

from pyromq.broker.routes import Handlers, build_routes
from pyromq.protocol.codes import RequestCode

FAMILIES: dict[str, type[Any]] = get_type_hints(Handlers)


def families() -> Handlers:
    return Handlers(
        **{name: create_autospec(kind, instance=True) for name, kind in FAMILIES.items()}
    )


#: What a broker of this version must serve.
SERVED = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
}


def test_everything_that_must_be_served_is() -> None:
    routes = build_routes(families())

    assert routes.hot.keys() | routes.plain.keys() >= SERVED
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

    used = {id(handler) for handler in (*routes.hot.values(), *routes.plain.values())}
    for family, kind in FAMILIES.items():
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or "request" not in inspect.signature(method).parameters:
                continue
            handler = getattr(getattr(handlers, family), name)
            assert id(handler) in used, f"{kind.__name__}.{name} serves nothing"
