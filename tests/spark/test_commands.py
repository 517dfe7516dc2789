"""The commands as users run them: in their own processes, with their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyromq.client import Message
from pyromq.testing import Cluster
from tests.spark.conftest import SPARK_CONF, TIMEOUT_SECONDS, SendMany


def run(cluster: Cluster, *arguments: str, pipe: str = "") -> subprocess.CompletedProcess[str]:
    """Run `pyromq spark ...` in a shell, with a pipe or a redirection."""
    conf = [f"--conf {key}='{value}'" for key, value in SPARK_CONF.items()]
    words = [sys.executable, "-m", "pyromq", "spark", *arguments]
    line = " ".join([*words, "--nameserver", cluster.namesrv, "--master 'local[2]'", *conf])
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    return subprocess.run(
        ["bash", "-c", f"{line} {pipe}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS - 10,
        env=environment | {"JAVA_HOME": ""},
    )


@pytest.mark.usefixtures("java")
def test_the_output_is_the_result_and_nothing_else(
    cluster: Cluster, topic: str, send_many: SendMany
) -> None:
    def message(number: int) -> Message:
        return Message(topic, b"%d" % number + bytes(500), keys=[f"{number}-{'k' * 80}"])

    send_many(topic, 5000, message)
    # Spark stops its workers early for the first statement, the pipe stops us in the second.
    few = f"'select queueOffset from `{topic}` limit 3'"
    many = f"'select `keys`, body_text from `{topic}`'"
    done = run(cluster, "sql", "--format", "json", "-e", few, "-e", many, pipe="| head -4")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [sorted(row) for row in rows] == [["queueOffset"]] * 3 + [["body_text", "keys"]]
    assert rows[-1]["keys"].endswith("k" * 80)
    assert done.stderr == ""


@pytest.mark.soak
@pytest.mark.usefixtures("java")
def test_an_audit_in_a_file_is_not_truncated(
    cluster: Cluster, send_many: SendMany, tmp_path: Path
) -> None:
    topic = "Audited-" + "x" * 100
    cluster.create_topic(topic)
    send_many(topic, 100)
    done = run(cluster, "audit", "--topic", topic, pipe=f"> {tmp_path / 'audit.txt'}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = (tmp_path / "audit.txt").read_text()
    assert topic in text
    assert "…" not in text
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ .* \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", text)
    assert "= 100 messages of these topics" in text
