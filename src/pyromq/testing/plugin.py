"""Fixtures of pytest: `rocketmq`, a cluster for one test, and `rocketmq_topic`.

    def test_order(rocketmq, rocketmq_topic):
        with Producer.sync(rocketmq.namesrv) as producer:
            producer.send(Message(rocketmq_topic, b"one book"))
        (message,) = rocketmq.drain(rocketmq_topic, count=1)

    @pytest.mark.rocketmq(brokers=2, settings={"messageDelayLevel": "1s 2s"})
    def test_fail_over(rocketmq):
        rocketmq.brokers[0].kill()

Each test gets a cluster of its own: nothing that a test leaves behind, or does to a broker,
is seen by another one, and a start costs no more than a few dozen milliseconds. Where even
that is too much, `rocketmq_session` is one cluster for all tests: they keep apart by
`rocketmq_topic`, which is another one for every test, and by groups of their own, or call its
`reset`.

Loaded by pytest in every run where pyromq is installed, so it imports the servers only when
a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from pyromq.testing.cluster import Cluster

_MARKER = "rocketmq"


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(brokers=1, settings=None): what the cluster of the fixture rocketmq has",
    )


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A RocketMQ cluster in this process, for this test only."""
    yield from _cluster(_wanted(request.node))


@pytest.fixture(scope="session")
def rocketmq_session() -> Iterator[Cluster]:
    """A RocketMQ cluster in this process, for all tests that ask for it."""
    yield from _cluster({})


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test has; created in the test's cluster."""
    topic = f"topic-{uuid4().hex[:12]}"
    names = request.fixturenames
    if "rocketmq_session" in names and _MARKER not in names:
        cluster: Cluster = request.getfixturevalue("rocketmq_session")
    else:
        cluster = request.getfixturevalue("rocketmq")
    cluster.create_topic(topic)
    return topic


def _wanted(node: Any) -> dict[str, Any]:
    marker = node.get_closest_marker(_MARKER)
    if marker is None:
        return {}
    if marker.args or not marker.kwargs.keys() <= {"brokers", "settings"}:
        raise pytest.UsageError(
            f"@pytest.mark.{_MARKER} takes brokers= and settings=, not {marker.args} "
            f"and {sorted(marker.kwargs)}"
        )
    return dict(marker.kwargs)


def _cluster(options: dict[str, Any]) -> Iterator[Cluster]:
    from pyromq.testing.cluster import Cluster

    with Cluster(**options) as cluster:
        yield cluster
