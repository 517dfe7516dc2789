"""What tests on the real engine share: one session and one cluster for each of pytest's workers.

    def test_count(spark, cluster, topic, send_many):
        send_many(topic, 1000)
        frame = spark.read.format("rocketmq").options(
            nameserver=cluster.namesrv, subscribe=topic
        ).load()
        assert frame.count() == 1000

A JVM takes seconds to start: engine tests live in few files, which xdist keeps together.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from pyromq.client import Message, Producer
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A JVM that starts on a busy machine, and a few queries.
TIMEOUT_SECONDS = 600
#: A JVM for tests: small, and compiled no more than it takes to start quickly.
JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
#: For child processes with sessions of their own, too.
SPARK_CONF = {
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
_BATCH = 500

SendMany = Callable[..., None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here is one of the engine, and may have to wait for a JVM."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))
            # PySpark's own: sockets of its gateway that it leaves to the collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(scope="session")
def java() -> None:
    """Java is there, or the test is skipped; with CI=true it fails."""
    from pyromq.spark.runtime.java import JavaNotFoundError, provide_java

    try:
        provide_java()
    except JavaNotFoundError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error} (CI=true: a skip is a failure)")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of a worker: two tasks at a time, four attempts for each."""
    from pyromq.spark.session import build_session

    os.environ.setdefault("SPARK_LAUNCHER_OPTS", JVM_OPTIONS)
    directory = tmp_path_factory.mktemp("spark")
    session = build_session(
        "local[2,4]",
        app_name="pyromq-tests",
        conf={
            **SPARK_CONF,
            "spark.local.dir": str(directory),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        },
    )
    yield session
    session.stop()
    gc.collect()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A NameServer and a broker in a thread of this process; tests keep apart by topics."""
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """A topic that no other test has, with 4 queues."""
    name = f"{request.node.originalname.removeprefix('test_')[:40]}-{uuid4().hex[:8]}"
    cluster.create_topic(name)
    return name


@pytest.fixture
def send_many(cluster: Cluster) -> SendMany:
    """`send_many(topic, 10_000)`, or with bodies of one's own, in batches to all queues in turn.

    Bodies are `b"0"`, `b"1"` and so on; `message(number)` makes others.
    """

    def send(
        topic: str,
        messages: int | Iterable[Message],
        message: Callable[[int], Message] | None = None,
    ) -> None:
        if isinstance(messages, int):
            make = message or (lambda number: Message(topic, str(number).encode()))
            messages = [make(number) for number in range(messages)]
        everything = list(messages)
        with Producer.sync(cluster.namesrv) as producer:
            for first in range(0, len(everything), _BATCH):
                producer.send_batch(everything[first : first + _BATCH])

    return send
