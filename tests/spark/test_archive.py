"""The archive on Spark: exactly once despite kills, readable by Spark, pyarrow and DuckDB."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pyromq.client import Message
from pyromq.spark.archive.archiver import ArchiveOptions, run_archive
from pyromq.spark.archive.compactor import CompactOptions, run_compact
from pyromq.spark.archive.directory import ArchiveDirectory
from pyromq.spark.archive.files import FileSettings
from pyromq.spark.columns import COLUMN_NAMES, MAP
from pyromq.spark.options import Topics
from pyromq.spark.origins.broker import ConnectionSettings
from pyromq.spark.origins.opening import BrokerSource, StoreSource
from pyromq.spark.origins.origin import OriginError
from pyromq.spark.runtime.fan_out import TaskFailedError, fan_out, parallelism
from pyromq.testing import Cluster
from tests.spark.conftest import SPARK_CONF, SendMany

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[str, int, int, bytes]
DRIVER = Path(__file__).with_name("archive_driver.py")
SEED = int(os.environ.get("PYROMQ_SEED") or 7)


def source_of(cluster: Cluster) -> BrokerSource:
    return BrokerSource(ConnectionSettings((cluster.namesrv,)))


def read_by_pyarrow(path: Path) -> list[Row]:
    table = ds.dataset(path, partitioning="hive").to_table(
        columns=["topic", "queueId", "queueOffset", "body"]
    )
    return sorted(tuple(row.values()) for row in table.to_pylist())


def read_by_duckdb(path: Path) -> list[Row]:
    query = "select topic, queueId, queueOffset, body from read_parquet($1, hive_partitioning=true)"
    with duckdb.connect() as connection:
        found: list[Row] = connection.execute(query, [f"{path}/**/*.parquet"]).fetchall()
    return sorted(found)


def read_by_spark(spark: SparkSession, path: Path) -> list[Row]:
    frame = spark.read.parquet(str(path)).select("topic", "queueId", "queueOffset", "body")
    return sorted((row[0], row[1], row[2], bytes(row[3])) for row in frame.collect())


def read_by_all(spark: SparkSession, path: Path) -> list[Row]:
    rows = read_by_pyarrow(path)
    assert read_by_duckdb(path) == rows
    assert read_by_spark(spark, path) == rows
    return rows


def test_topics_to_parquet_and_compaction(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    dead = f"%DLQ%{topic}"
    cluster.create_topic(dead, queues=1)
    options = ArchiveOptions(
        Topics((topic, dead)), max_records=15_000, files=FileSettings(include_properties=MAP)
    )
    send_many(topic, 20_000, lambda n: Message(topic, b"%d" % n, tags=f"tag-{n % 3}", keys=["k"]))
    send_many(dead, 10)
    first = run_archive(spark, source_of(cluster), path, options)
    assert (first.messages, first.commits, first.left) == (20_010, 2, 0)
    send_many(topic, [Message(topic, b"late"), Message(topic, os.urandom(3 * 1024 * 1024))])
    assert run_archive(spark, source_of(cluster), path, options).messages == 2
    assert run_archive(spark, source_of(cluster), path, options).commits == 0

    rows = read_by_all(spark, path)
    assert sorted(body for name, _, _, body in rows if name == topic and len(body) < 100) == sorted(
        [*(b"%d" % number for number in range(20_000)), b"late"]
    )
    assert [body for name, _, _, body in rows if name == dead] == [
        b"%d" % number for number in range(10)
    ]
    frame = spark.read.parquet(str(path))
    assert sorted(frame.columns) == sorted([*COLUMN_NAMES, "hour"])
    assert frame.where(f"topic = '{topic}' and properties['TAGS'] = 'tag-1'").count() == 6667
    assert frame.where("date_format(storeTimestamp, 'yyyy-MM-dd-HH') != hour").count() == 0
    assert pq.read_table(path).num_rows == 20_012

    done = run_compact(spark, path, CompactOptions(topics=frozenset({topic})))
    assert done.files_before > done.files_after
    assert read_by_all(spark, path) == rows


def test_the_files_of_a_store(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany, tmp_path: Path
) -> None:
    send_many(topic, 3000)
    options = ArchiveOptions(Topics((topic,)))
    (store,) = cluster.directory.glob("**/commitlog")
    from_store = StoreSource(str(store.parent), "broker-0")
    assert run_archive(spark, from_store, tmp_path / "store", options).messages == 3000
    # Brokers continue the same queues.
    send_many(topic, 1000)
    assert run_archive(spark, source_of(cluster), tmp_path / "store", options).messages == 1000
    run_archive(spark, source_of(cluster), tmp_path / "brokers", options)
    columns = list(COLUMN_NAMES)
    tables = [
        ds.dataset(tmp_path / name, partitioning="hive")
        .to_table(columns=columns)
        .sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
        for name in ("store", "brokers")
    ]
    assert tables[0].equals(tables[1])


def test_fan_out(spark: SparkSession) -> None:
    assert fan_out(spark, lambda number: number * number, range(5)) == [0, 1, 4, 9, 16]
    assert parallelism(spark) == 2


def test_tasks_that_fail_permanently(spark: SparkSession) -> None:
    def fail(number: int) -> None:
        raise OriginError("no broker answers")

    with pytest.raises(
        TaskFailedError, match=r"^pyromq\.spark\.origins\.origin\.OriginError: no broker"
    ):
        fan_out(spark, fail, [1])
    with pytest.raises(TaskFailedError, match="worker exited unexpectedly"):
        fan_out(spark, lambda number: os.kill(os.getpid(), signal.SIGKILL), [1])


class Driver:
    """A child process that archives, with its Python workers."""

    def __init__(self, cluster: Cluster, topic: str, path: Path, conf: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER), cluster.namesrv, topic, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "ARCHIVE_TEST_CONF": json.dumps(conf)},
            text=True,
        )

    def begin(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def kill_worker(self, choice: random.Random) -> bool:
        """Kill a process that runs tasks; return False if there is none right now."""
        workers = _workers(self._process.pid)
        if not workers:
            return False
        with suppress(ProcessLookupError):
            os.kill(choice.choice(workers), signal.SIGKILL)
        return True


def _workers(driver: int) -> list[int]:
    """Return the processes that the worker daemon of a driver has forked."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            if b"pyromq.spark.runtime.worker_daemon" in (entry / "cmdline").read_bytes():
                daemons.add(int(entry.name))
        except (OSError, IndexError):
            continue  # the process has ended

    def is_ours(process: int) -> bool:
        while process in parents:
            process = parents[process]
            if process == driver:
                return True
        return False

    # Workers have the command line of their daemon, whose parent is the JVM.
    return [each for each in daemons if parents[each] in daemons and is_ours(each)]


@contextmanager
def steady_sending(send_many: SendMany, topic: str) -> Iterator[Callable[[], int]]:
    """Send messages continuously; yield a function that returns how many were sent."""
    sent = 0
    stop = threading.Event()

    def send() -> None:
        nonlocal sent
        while not stop.is_set():
            send_many(topic, [Message(topic, b"%d" % n) for n in range(sent, sent + 200)])
            sent += 200
            stop.wait(0.2)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield lambda: sent
    finally:
        stop.set()
        thread.join()


def check_archived(path: Path, rows: list[Row]) -> None:
    """Check that the files match the positions: no offset is duplicate, missing or extra."""
    found: dict[int, list[int]] = {}
    for _, queue_id, offset, _ in rows:
        found.setdefault(queue_id, []).append(offset)
    positions = ArchiveDirectory(path).state().positions
    assert found == {queue.queue_id: [*range(end)] for queue, end in positions.items() if end}


def survive_kills(
    seed: int,
    driver_kills: int,
    worker_kills: int,
    cluster: Cluster,
    topic: str,
    send_many: SendMany,
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    choice = random.Random(seed)
    path = tmp_path / "archive"
    conf: dict[str, Any] = {**SPARK_CONF, "spark.local.dir": str(tmp_path)}
    archive = ArchiveDirectory(path)
    archive.create()
    # The next driver starts while this one works: a JVM starts slowly.
    spares = [Driver(cluster, topic, path, conf)]
    killed_workers = 0
    try:
        with steady_sending(send_many, topic) as sent:
            for round_number in range(driver_kills):
                driver = spares[-1]
                driver.begin()
                if round_number + 1 < driver_kills:
                    spares.append(Driver(cluster, topic, path, conf))
                before = archive.peek().number
                wanted = worker_kills * (round_number + 1) // driver_kills
                while killed_workers < wanted:
                    time.sleep(choice.uniform(0, 0.4))
                    killed_workers += driver.kill_worker(choice)
                    assert driver.is_running
                # It continues, and is killed at some instant of the next commits.
                while archive.peek().number <= before:
                    assert driver.is_running
                    time.sleep(0.02)
                time.sleep(choice.uniform(0, 0.6))
                assert driver.is_running
                driver.kill()
                archive.state()  # as the next driver does first
                rows = read_by_pyarrow(path)
                check_archived(path, rows)
                assert read_by_duckdb(path) == rows
    finally:
        for driver in spares:
            driver.kill()
    options = ArchiveOptions(Topics((topic,)))
    run_archive(spark, source_of(cluster), path, options)
    rows = read_by_all(spark, path)
    check_archived(path, rows)
    assert sorted(int(body) for _, _, _, body in rows) == [*range(sent())]


def test_exactly_once_despite_kills(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany, tmp_path: Path
) -> None:
    survive_kills(SEED, 2, 4, cluster, topic, send_many, tmp_path, spark)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_exactly_once_despite_many_kills(
    seed: int,
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    send_many: SendMany,
    tmp_path: Path,
) -> None:
    survive_kills(seed, 12, 36, cluster, topic, send_many, tmp_path, spark)
