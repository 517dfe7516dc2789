"""The example project for Spark's declarative pipelines runs, and goes on where it ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

from pyromq.client import Message
from pyromq.testing import Cluster
from tests.spark.conftest import JVM_OPTIONS, TIMEOUT_SECONDS, SendMany

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
#: What its spec says of where checkpoints are; everybody has another place.
STORAGE = "file:///tmp/pyromq-orders"
#: Spark's own limit for the start of a Python process, which a crowded machine does not keep.
TOO_BUSY = "Python worker failed to connect back"
ATTEMPTS = 3
#: One that outlives a run.
CATALOG = "spark.sql.catalogImplementation=hive"


@pytest.mark.soak  # two JVMs, one after the other
@pytest.mark.timeout(ATTEMPTS * TIMEOUT_SECONDS)
def test_the_example_runs_and_goes_on(
    java: None, cluster: Cluster, send_many: SendMany, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    assert STORAGE in spec.read_text()
    spec.write_text(spec.read_text().replace(STORAGE, f"file://{tmp_path}/storage"))
    cluster.create_topic("orders")

    send_many("orders", 10, lambda number: order(number, "new"))
    run(project, cluster)
    assert rows(project, "orders_by_tag") == {"new": 10}
    texts = {text.as_py() for text in table(project, "orders")["text"]}
    assert texts == {f"order {number}" for number in range(10)}

    send_many("orders", 5, lambda number: order(number, "paid"))
    run(project, cluster)
    assert rows(project, "orders_by_tag") == {"new": 10, "paid": 5}
    assert table(project, "orders").num_rows == 15


def order(number: int, tags: str) -> Message:
    return Message("orders", f"order {number}".encode(), tags=tags, keys=f"order-{number}")


def run(project: Path, cluster: Cluster) -> None:
    environment = os.environ | {
        "NAMESRV_ADDR": cluster.namesrv,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LAUNCHER_OPTS": JVM_OPTIONS,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            [Path(sys.executable).parent / "spark-pipelines", "run", "--conf", CATALOG],
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        said = done.stdout + done.stderr
        if done.returncode == 0 or TOO_BUSY not in said:
            break
    assert done.returncode == 0, said[-5000:]
    assert "Run is COMPLETED" in said


def rows(project: Path, name: str) -> dict[str, int]:
    return {row["tags"]: row["messages"] for row in table(project, name).to_pylist()}


def table(project: Path, name: str) -> pyarrow.Table:
    files = project / "spark-warehouse" / name
    return pyarrow.dataset.dataset(files, format="parquet").to_table()
