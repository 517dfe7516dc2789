"""Fixtures of the client cases: brokers that all modules share, names that no two cases share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clients.cases import Case
from tests.interop.client_driver import ClientDriver
from tests.interop.client_programs import java_driver
from tests.interop.cluster import Cluster
from tests.support.apache_rocketmq import VERSION


class Clusters:
    """One cluster of each kind, started when it is first asked for."""

    def __init__(self) -> None:
        self._running: dict[str, Cluster] = {}
        self._ends = ExitStack()

    def get(self, kind: str) -> Cluster:
        cluster = self._running.get(kind)
        if cluster is None:
            cluster = self._ends.enter_context(Cluster(kind))  # type: ignore[arg-type]
            self._running[kind] = cluster
        return cluster

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="package")
def clusters() -> Iterator[Clusters]:
    clusters = Clusters()
    try:
        yield clusters
    finally:
        clusters.close()


@pytest.fixture(params=["pyromq", "apache"])
def cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Cluster:
    """The broker of a case: each kind in turn."""
    return clusters.get(request.param)


@pytest.fixture
def case(request: pytest.FixtureRequest, cluster: Cluster) -> Case:
    words = [request.node.originalname.removeprefix("test_"), request.node.callspec.id]
    case = Case(cluster, re.sub(r"[^a-zA-Z0-9]+", "-", "-".join(words)).strip("-"))
    cluster.create_topic(case.topic)
    return case


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
