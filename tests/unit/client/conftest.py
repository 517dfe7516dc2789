"""A real cluster in this process, shared by the tests of one file that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyromq.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = f"topic-{abs(hash(request.node.nodeid))}"
    cluster.create_topic(name)
    return name
