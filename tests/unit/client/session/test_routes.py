from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from pyromq.client.errors import (
    AnswerError,
    ClientStateError,
    NameServerError,
    TopicNotFoundError,
)
from pyromq.client.session import routes as routes_module
from pyromq.client.session.routes import Routes, TopicRoute
from pyromq.protocol.wire.bodies import (
    BodyError,
    BrokerData,
    MessageQueue,
    QueueData,
    TopicRouteData,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.remoting.client import RemotingClient
from tests.support.patience import DEADLINE, until
from tests.unit.client.fake_cluster import running_cluster

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
NOBODY = "127.0.0.1:1"


@contextlib.asynccontextmanager
async def routes_of(*addresses: str, max_age: float = 30.0) -> AsyncIterator[Routes]:
    remoting = RemotingClient()
    routes = Routes(remoting, addresses, max_age=max_age, request_timeout=2 * DEADLINE)
    try:
        yield routes
    finally:
        await routes.close()
        await remoting.close()


def test_queues_follow_permissions_and_masters() -> None:
    body = TopicRouteData(
        [
            QueueData("read-only", 2, 2, perm=4),
            QueueData("replica-only", 1, 1, perm=6),
            QueueData("write-only", 2, 2, perm=2),
            QueueData("unknown", 2, 2, perm=6),
        ],
        [
            BrokerData("c", "read-only", {0: "a:1"}),
            BrokerData("c", "replica-only", {1: "b:1", 2: "b:2"}),
            BrokerData("c", "write-only", {0: "w:1"}),
        ],
    )
    route = TopicRoute.from_body("t", body)
    assert route.read_queues == (
        MessageQueue("t", "read-only", 0),
        MessageQueue("t", "read-only", 1),
        MessageQueue("t", "replica-only", 0),
    )
    assert route.write_queues == (
        MessageQueue("t", "write-only", 0),
        MessageQueue("t", "write-only", 1),
    )
    assert route.masters() == {"a:1", "w:1"}
    assert route.everyone() == ["a:1", "w:1", "b:1", "b:2"]
    assert route.headless() == ["replica-only"]
    assert route.clusters == {"c"}


@pytest.mark.parametrize(
    ("ids", "wanted", "away", "place"),
    [
        ({0: "m", 1: "r"}, 0, "", ("m", 0)),
        ({0: "m", 1: "r"}, 1, "", ("r", 1)),
        ({0: "m", 2: "s"}, 1, "", ("s", 2)),  # a missing replica: the next id
        ({0: "m", 3: "t"}, 1, "", ("m", 0)),
        ({1: "r", 2: "s"}, 0, "", ("r", 1)),  # a missing master: any replica, not the next id
        ({2: "s", 3: "t"}, 0, "", ("s", 2)),
        ({2: "s", 3: "t"}, 7, "", ("s", 2)),
        ({0: "m", 1: "r"}, 0, "m", ("r", 1)),
        ({0: "m", 1: "r"}, 1, "r", ("m", 0)),
        ({0: "m", 1: "r", 2: "s"}, 1, "r", ("s", 2)),
        ({0: "m", 1: "r"}, 0, "mr", ("m", 0)),
        ({0: "m"}, 0, "m", ("m", 0)),
    ],
)
def test_reads_go_to_the_id_that_java_would_choose(
    ids: dict[int, str], wanted: int, away: str, place: tuple[str, int]
) -> None:
    route = TopicRoute("t", (), (), {"b": ids})
    assert route.place_of("b", wanted, set(away)) == place


def test_a_broker_without_addresses_is_unknown() -> None:
    body = TopicRouteData([QueueData("b", 1, 1, perm=6)], [BrokerData("c", "b", {})])
    route = TopicRoute.from_body("t", body)
    assert (route.addresses, route.read_queues, route.write_queues) == ({}, (), ())


def test_an_ordered_topic_has_the_configured_queues_whatever_brokers_are_up() -> None:
    body = TopicRouteData(
        [QueueData("a", 8, 8, perm=6), QueueData("c", 8, 8, perm=6)],
        [BrokerData("x", "a", {0: "a:1"}), BrokerData("x", "c", {1: "c:2"})],
        order_topic_conf="c:2;lost:1;a:1;",
    )
    route = TopicRoute.from_body("t", body)
    assert route.write_queues == (
        MessageQueue("t", "c", 0),
        MessageQueue("t", "c", 1),
        MessageQueue("t", "lost", 0),
        MessageQueue("t", "a", 0),
    )
    assert len(route.read_queues) == 16
    assert [route.master_of(name) for name in ("a", "c", "lost")] == ["a:1", None, None]


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:",
        "a:x",
        "a:-1",
        ":3",
        "a:65537",
        "a:1:2",
        "a:٣",
        "a:65536",
        pytest.param("a:" + "9" * 5000, id="huge"),
    ],
)
def test_a_bad_order_configuration_is_refused(text: str) -> None:
    with pytest.raises(BodyError, match="order configuration of topic 't'"):
        TopicRoute.from_body("t", TopicRouteData(order_topic_conf=f"b:1;{text}"))


def test_a_new_topic_has_the_route_of_the_template_with_at_most_as_many_queues() -> None:
    template = TopicRoute.from_body(
        "TBW102",
        TopicRouteData([QueueData("b", 8, 8, perm=7)], [BrokerData("c", "b", {0: "a:1"})]),
    )
    route = template.for_new_topic("new", 2)
    assert route.write_queues == (MessageQueue("new", "b", 0), MessageQueue("new", "b", 1))
    assert route.topic == "new"


def test_a_route_with_too_many_queues_is_refused() -> None:
    with pytest.raises(BodyError, match="more than 65536"):
        TopicRoute.from_body("t", TopicRouteData([QueueData("b", 0x7FFFFFFF, 1, perm=6)]))


async def test_a_route_is_looked_up_once_and_cached() -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster, routes_of(cluster.namesrv) as routes:
        answers = await asyncio.gather(*(routes.get("t") for _ in range(10)))
        assert len(answers[0].write_queues) == 2
        await routes.get("t")
        assert len(cluster.brokers[0].seen(ROUTE)) == 1
        assert routes.known() == [answers[0]]


async def test_an_old_route_is_returned_at_once_and_refreshed_in_the_background() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        routes_of(cluster.namesrv, max_age=0) as routes,
    ):
        route = await routes.get("t")
        cluster.topics["t"]["b0"] = 3
        assert await routes.get("t") is route
        assert routes.peek("t") is route
        await until(lambda: len(routes.known()[0].write_queues) == 3)


async def test_a_doubtful_route_is_refreshed_on_its_next_use() -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster, routes_of(cluster.namesrv) as routes:
        routes.doubt("unknown")
        route = await routes.get("t")
        cluster.topics["t"]["b0"] = 3
        routes.doubt("t")
        assert await routes.get("t") is route
        await until(lambda: len(routes.known()[0].write_queues) == 3)
        await routes.get("t")
        assert len(cluster.brokers[0].seen(ROUTE)) == 2


async def test_a_hanging_name_server_delays_no_caller_with_a_cached_route() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        routes_of(cluster.namesrv, max_age=0) as routes,
    ):
        route = await routes.get("t")
        cluster.brokers[0].silent.add(ROUTE)
        assert await routes.get("t") is route
        await until(lambda: len(cluster.brokers[0].seen(ROUTE)) == 2)
        assert [await routes.get("t") for _ in range(10)] == [route] * 10
        assert routes.peek("t") is route
        assert len(cluster.brokers[0].seen(ROUTE)) == 2


async def test_a_background_refresh_asks_the_next_name_server() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        running_cluster({"t": {"b0": 3}}) as other,
        routes_of(cluster.namesrv, other.namesrv, max_age=0) as routes,
    ):
        routes._addresses = [cluster.namesrv]
        await routes.get("t")
        routes._addresses = [cluster.namesrv, other.namesrv]
        cluster.brokers[0].refusals[ROUTE] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        await routes.get("t")
        await until(lambda: len(routes.known()[0].write_queues) == 3)
        assert routes._addresses == [other.namesrv, cluster.namesrv]


async def test_an_old_route_is_kept_while_no_name_server_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        routes_of(cluster.namesrv, max_age=0) as routes,
    ):
        route = await routes.get("t")
        cluster.brokers[0].refusals[ROUTE] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        assert await routes.get("t") is route
        await until(lambda: bool(caplog.records))
        assert [r.levelno for r in caplog.records] == [logging.WARNING]
        assert "failed, keeping it" in caplog.text
        assert await routes.get("t") is route


async def test_a_deleted_topic_is_reported_after_a_background_refresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_module, "FORGOTTEN_AFTER", 0.0)
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        routes_of(cluster.namesrv, max_age=0) as routes,
    ):
        route = await routes.get("t")
        del cluster.topics["t"]
        assert await routes.get("t") is route
        await until(lambda: not routes.known())
        with pytest.raises(TopicNotFoundError, match="'t' has no route"):
            await routes.get("t")


async def test_closing_cancels_lookups(caplog: pytest.LogCaptureFixture) -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        async with routes_of(cluster.namesrv, max_age=0) as routes:
            await routes.get("t")
            cluster.brokers[0].silent.add(ROUTE)
            await routes.get("t")
            waiting = asyncio.create_task(routes.refresh("unknown"))
            await until(lambda: len(cluster.brokers[0].seen(ROUTE)) == 3)
        assert not routes._asking
        assert not caplog.records
        with pytest.raises(ClientStateError, match="was closed while it looked up"):
            await waiting


async def test_an_unknown_topic_is_named() -> None:
    async with running_cluster({}) as cluster, routes_of(cluster.namesrv) as routes:
        with pytest.raises(TopicNotFoundError, match="'t' has no route"):
            await routes.get("t")
        assert routes.known() == []


async def test_a_known_topic_is_dropped_only_after_every_broker_must_have_registered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster, routes_of(cluster.namesrv) as routes:
        route = await routes.get("t")
        del cluster.topics["t"]
        assert await routes.refresh("t") is route
        assert "NameServers may have restarted" in caplog.text
        monkeypatch.setattr(routes_module, "FORGOTTEN_AFTER", 0.0)
        with pytest.raises(TopicNotFoundError, match="'t' has no route"):
            await routes.refresh("t")
        assert routes.known() == []


async def test_a_name_server_without_the_route_does_not_speak_for_the_others() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        running_cluster({}) as empty,
        routes_of(empty.namesrv, cluster.namesrv) as routes,
    ):
        routes._addresses = [empty.namesrv, cluster.namesrv]
        assert len((await routes.get("t")).write_queues) == 1


async def test_each_name_server_is_tried_and_the_good_one_remembered() -> None:
    async with (
        running_cluster({"t": {"b0": 1}, "u": {"b0": 1}}) as cluster,
        routes_of(NOBODY, cluster.namesrv) as routes,
    ):
        await routes.get("t")
        await routes.get("u")
        assert routes._addresses == [cluster.namesrv, NOBODY]


async def test_if_none_answers_the_error_of_each_is_reported() -> None:
    async with running_cluster({}) as cluster, routes_of(NOBODY, cluster.namesrv) as routes:
        cluster.brokers[0].refusals[ROUTE] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        with pytest.raises(NameServerError) as caught:
            await routes.get("t")
        assert NOBODY in str(caught.value)
        assert "ill" in str(caught.value)
        assert set(caught.value.causes) == {NOBODY, cluster.namesrv}


async def test_a_response_that_is_not_a_route_counts_as_a_failure() -> None:
    async with running_cluster({}) as cluster, routes_of(cluster.namesrv) as routes:
        cluster.brokers[0].refusals[ROUTE] = [(ResponseCode.SUCCESS, "without a body")]
        with pytest.raises(NameServerError) as caught:
            await routes.get("t")
        assert isinstance(caught.value.causes[cluster.namesrv], AnswerError)
