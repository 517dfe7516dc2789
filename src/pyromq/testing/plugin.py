"""pytest fixtures: `rocketmq`, a cluster for one test, and `rocketmq_topic`.

    def test_order(rocketmq, rocketmq_topic):
        with Producer.sync(rocketmq.namesrv) as producer:
            producer.send(Message(rocketmq_topic, b"one book"))
        (message,) = rocketmq.drain(rocketmq_topic, count=1)

    @pytest.mark.rocketmq(brokers=2, settings={"messageDelayLevel": "1s 2s"})
    def test_loss_of_a_broker(rocketmq):
        rocketmq.brokers[0].kill()

    @pytest.mark.rocketmq(replicas=1)
    def test_failover(rocketmq):
        rocketmq.brokers[0].kill()
        rocketmq.brokers[0].replicas[0].promote()

    @pytest.mark.rocketmq(tls=True, acl=True)
    def test_with_security(rocketmq, rocketmq_topic):
        Producer(rocketmq.namesrv, **rocketmq.client_options)

    @pytest.mark.rocketmq(raft=3)
    def test_election(rocketmq):
        rocketmq.leader.kill()
        rocketmq.await_leader()

Each test gets its own cluster, so no test sees another's leftovers or stopped brokers; a start
takes a few dozen milliseconds. If that is too much, `rocketmq_session` is one cluster for all
tests: they use their own groups and `rocketmq_topic`, a new topic per test, or call `reset`.

pytest loads this module in every run where pyromq is installed, so it imports the servers only when
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
#: In the order in which an error names them.
_OPTIONS = dict.fromkeys(("brokers", "replicas", "raft", "tls", "acl", "settings"))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(brokers=1, replicas=0, raft=0, tls=False, acl=False, settings=None): options "
        "of the cluster of the fixture rocketmq",
    )


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yield a RocketMQ cluster in this process, for this test only."""
    yield from _cluster(_wanted(request.node))


@pytest.fixture(scope="session")
def rocketmq_session() -> Iterator[Cluster]:
    """Yield a RocketMQ cluster in this process, shared by all tests that use it."""
    yield from _cluster({})


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest) -> str:
    """Create a topic that no other test has in the test's cluster; return its name."""
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
    if marker.args or not marker.kwargs.keys() <= _OPTIONS.keys():
        raise pytest.UsageError(
            f"@pytest.mark.{_MARKER} takes {'=, '.join(_OPTIONS)}=, not "
            f"{marker.args} and {sorted(marker.kwargs)}"
        )
    return dict(marker.kwargs)


def _cluster(options: dict[str, Any]) -> Iterator[Cluster]:
    from pyromq.testing.cluster import Cluster

    with Cluster(**options) as cluster:
        yield cluster
