"""Fixtures: a NameServer for all; for client cases a cluster for each module, and drivers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.cases import Case
from tests.interop.client_driver import ClientDriver
from tests.interop.client_programs import CLIENTS
from tests.interop.cluster import Cluster
from tests.interop.servers import PyromqServer


@pytest.fixture(scope="session")
def namesrv() -> Iterator[str]:
    """A NameServer of ours for Java brokers, one at a time: Java's would cost a JVM for each."""
    with PyromqServer(namesrv_only=True) as server:
        yield server.namesrv_address


@pytest.fixture(scope="module", params=[pytest.param("apache", marks=pytest.mark.soak), "pyromq"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker; Apache's is the control, which only the long run looks at."""
    with Cluster(request.param) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[ClientDriver]:
    """The client that `with_clients` names. A new one for each cluster: ali-ons keeps the first."""
    with CLIENTS[request.param].start() as driver:
        yield driver


@pytest.fixture
def case(request: pytest.FixtureRequest, cluster: Cluster, driver: ClientDriver) -> Iterator[Case]:
    name = request.node.originalname.removeprefix("test_")
    client = request.node.callspec.params["driver"].replace(".", "_")
    case = Case(cluster, driver, f"{name}-{client}")
    case.create_topics()
    try:
        yield case
    finally:
        driver.close_all()
