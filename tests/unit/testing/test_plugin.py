"""The fixtures of pytest, in runs of pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyromq.testing import Cluster

#: With the plugin from the installed entry point, as users have it; without others.
COMMAND = [sys.executable, "-W", "error", "-m", "pytest", "-q"] + [
    f"-pno:{plugin}" for plugin in ("cacheprovider", "asyncio", "hypothesispytest", "anyio")
]

TESTS = """
import pytest
from pyromq.client import Message, Producer

seen = []

def send(cluster, topic):
    with Producer.sync(cluster.namesrv) as producer:
        return producer.send(Message(topic, b"one book"))

@pytest.mark.parametrize("turn", [1, 2])
def test_fresh_for_each_test(rocketmq, rocketmq_topic, turn):
    result = send(rocketmq, rocketmq_topic)
    assert result.queue_offset == 0
    seen.append((rocketmq.namesrv, rocketmq_topic))
    assert len(set(seen)) == turn

@pytest.mark.rocketmq(brokers=2, settings={"defaultTopicQueueNums": "2"})
def test_marker(rocketmq):
    assert len(rocketmq.brokers) == 2
    with Producer.sync(rocketmq.namesrv) as producer:
        assert len(producer.queues("new")) == 4

@pytest.mark.rocketmq(replicas=1)
def test_replicas(rocketmq):
    assert len(rocketmq.brokers[0].replicas) == 1

@pytest.mark.rocketmq(raft=3)
def test_raft(rocketmq):
    assert rocketmq.leader in rocketmq.brokers

@pytest.mark.parametrize("turn", [1, 2])
def test_one_for_all(rocketmq_session, rocketmq_topic, turn):
    assert send(rocketmq_session, rocketmq_topic).queue_offset == 0
    seen.append(rocketmq_session.namesrv)
    assert seen.count(rocketmq_session.namesrv) == turn
"""


def test_each_test_has_its_own_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run(tmp_path, "--strict-markers")
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


def test_a_wrong_marker_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.rocketmq(borkers=2)\ndef test_it(rocketmq): ...\n"
    )
    done = run(tmp_path)
    assert done.returncode != 0
    assert (
        "takes brokers=, replicas=, raft=, tls=, acl=, settings=, not () and ['borkers']"
        in done.stdout
    )


def test_runs_without_it_do_not_pay(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert 'pyromq.testing.plugin' in sys.modules\n"
        "    heavy = ('pyromq.broker', 'pyromq.client', 'pyromq.protocol', 'numpy')\n"
        "    assert not [name for name in heavy if name in sys.modules]\n"
    )
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout


def test_fixtures_are_there_in_this_run(rocketmq: Cluster, rocketmq_topic: str) -> None:
    assert rocketmq_topic.startswith("topic-")
    assert rocketmq.brokers[0].is_running


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments, str(directory)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
