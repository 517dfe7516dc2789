from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyromq.client.consumer.subscription import Subscription, check_expressions
from pyromq.client.errors import BrokerError, TopicNotFoundError
from pyromq.client.options import Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import CheckClientRequestBody, HeartbeatData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.unit.client.fake_cluster import FakeCluster, running_cluster

CHECK = RequestCode.CHECK_CLIENT_CONFIG
SQL = Subscription.sql("a > 1")


@asynccontextmanager
async def session_of(cluster: FakeCluster) -> AsyncIterator[Session]:
    session = Session(Settings.of(cluster.namesrv, {"namespace": "tenant"}), HeartbeatData)
    session.start()
    try:
        yield session
    finally:
        await session.close()


async def test_a_broker_of_the_topic_checks_the_expression() -> None:
    async with (
        running_cluster({"tenant%t": {"b0": 1, "b1": 1}}, brokers=2) as cluster,
        session_of(cluster) as session,
    ):
        await check_expressions(session, "g", {"t": SQL, "u": Subscription.tags("a")})
        (asked,) = [request for broker in cluster.brokers for request in broker.seen(CHECK)]
        body = CheckClientRequestBody.decode(asked.body)
        assert (body.client_id, body.group) == (session.client_id, "tenant%g")
        assert body.subscription_data is not None
        assert body.subscription_data.topic == "tenant%t"
        assert body.subscription_data.sub_string == "a > 1"
        assert body.subscription_data.expression_type == "SQL92"


async def test_bad_expressions_and_missing_topics_are_raised() -> None:
    async with running_cluster({"tenant%t": {"b0": 1}}) as cluster, session_of(cluster) as session:
        refusal = (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "Invalid")
        cluster.brokers[0].refusals[CHECK] = [refusal]
        with pytest.raises(BrokerError, match="Invalid"):
            await check_expressions(session, "g", {"t": SQL})
        with pytest.raises(TopicNotFoundError, match="missing"):
            await check_expressions(session, "g", {"missing": SQL})
        await check_expressions(session, "g", {"missing": SQL}, may_be_missing=True)


async def test_unreachable_brokers_are_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running_cluster({"tenant%t": {"b1": 1, "b2": 1}}, brokers=3) as cluster,
        session_of(cluster) as session,
    ):
        first, second = sorted(cluster.brokers[1:], key=lambda broker: broker.address)
        await session.routes.get("tenant%t")
        await first.stop()
        await check_expressions(session, "g", {"t": SQL})
        assert len(second.seen(CHECK)) == 1
        assert "not checked" in caplog.text
