"""Fixtures of the client cases: brokers that all modules share, names that no two cases share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.cases import TAKES_PLAIN, Case
from tests.interop.client_driver import ClientDriver
from tests.interop.client_programs import java_driver
from tests.interop.cluster import Cluster
from tests.support.apache_rocketmq import VERSION
from tests.support.clients import clients_with


class Clusters:
    """One cluster of each kind that the run needs, all started at the same time."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._ends = ExitStack()
        starters = ThreadPoolExecutor(3)
        self._starting = {kind: starters.submit(self._start, kind) for kind in kinds}
        starters.shutdown(wait=False)

    def _start(self, kind: str) -> Cluster:
        return self._ends.enter_context(Cluster(kind))  # type: ignore[arg-type]

    def get(self, kind: str) -> Cluster:
        return self._starting[kind].result()

    def close(self) -> None:
        wait(self._starting.values())
        self._ends.close()


@pytest.fixture(scope="package")
def clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    here = Path(__file__).parent
    calls = [
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.path.parent == here
    ]
    needed = [call.params.get("cluster") for call in calls if call is not None]
    clusters = Clusters(dict.fromkeys(kind for kind in needed if kind))
    try:
        yield clusters
    finally:
        clusters.close()


#: Fixtures of Java's clients, which here have no keys and no certificates.
_PLAIN_CLIENTS = {"java", "java_clients", "admin"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each case against all kinds of brokers, unless it names its own."""
    if "cluster" in metafunc.fixturenames and not any(
        mark.args[0] == "cluster" for mark in metafunc.definition.iter_markers("parametrize")
    ):
        is_ours = _PLAIN_CLIENTS.isdisjoint(metafunc.fixturenames)
        kinds = (*TAKES_PLAIN, "pyromq-secure") if is_ours else TAKES_PLAIN
        metafunc.parametrize("cluster", kinds, indirect=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Cluster:
    """The broker of a case: each kind in turn."""
    return clusters.get(request.param)


@pytest.fixture
def case(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Case]:
    words = [request.node.originalname.removeprefix("test_"), request.node.callspec.id]
    case = Case(cluster, re.sub(r"[^a-zA-Z0-9]+", "-", "-".join(words)).strip("-"))
    cluster.create_topic(case.topic)
    with clients_with(cluster.options):
        yield case


@pytest.fixture(scope="package")
def java() -> Iterator[ClientDriver]:
    """Java's client of the same version as Apache's broker.

    It puts an IPv6 address into its ids where there is one, and they are longer then.
    """
    with java_driver(VERSION, "-Djava.net.preferIPv4Stack=true") as driver:
        yield driver


@pytest.fixture
def java_clients(java: ClientDriver) -> Iterator[ClientDriver]:
    """The same; what a case opens is closed behind it."""
    yield java
    java.close_all()
