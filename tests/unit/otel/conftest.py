"""A cluster, and instrumented clients for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyromq.otel import PyromqInstrumentor
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES
from tests.unit.otel.tracing import Recorder


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    settings = {**PATIENT_PROPERTIES, "messageDelayLevel": " ".join(["10ms"] * 18)}
    with Cluster(settings=settings) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    cluster.create_topic(name, queues=1)
    return name


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    # The tree that is tested may not be the one that is installed.
    PyromqInstrumentor().instrument(tracer_provider=recorder.provider, skip_dep_check=True)
    try:
        yield recorder
    finally:
        PyromqInstrumentor().uninstrument()
