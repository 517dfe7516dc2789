from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pyromq.cli.send import send
from pyromq.client.message import MAX_DELAY_LEVEL
from tests.unit.client.fake_cluster import FakeCluster, cluster_in_a_thread


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster:
        yield cluster


def invoke(cluster: FakeCluster, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(send, [*arguments, "--namesrv", cluster.namesrv], input=stdin)


def test_a_message_with_everything(cluster: FakeCluster) -> None:
    result = invoke(
        cluster, "t", "grüß", "--tags", "a", "--keys", "k1 k2", "--property", "x=1", "--property",
        "y=a=b",
    )  # fmt: skip
    assert result.exit_code == 0
    (record,) = cluster.brokers[0].queues["t", 0]
    assert record.body == "grüß".encode()
    unique_key = record.properties.pop("UNIQ_KEY")
    assert record.properties == {
        "x": "1", "y": "a=b", "KEYS": "k1 k2", "TAGS": "a", "WAIT": "true"
    }  # fmt: skip
    assert result.output == f"msgId={unique_key} queue=b0:0 offset=0 SEND_OK\n"


def test_bodies_from_files_stdin_and_of_a_size(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff")
    assert invoke(cluster, "t", "--file", str(file)).exit_code == 0
    assert invoke(cluster, "t", "-", stdin=b"from stdin").exit_code == 0
    assert invoke(cluster, "t", "--file", "-", stdin=b"also").exit_code == 0
    assert invoke(cluster, "t", "--size", "25").exit_code == 0
    bodies = [record.body for record in cluster.brokers[0].queues["t", 0]]
    assert bodies == [b"\x00\xff", b"from stdin", b"also", b"0123456789012345678901234"]


def test_a_delay_level_and_an_ordering_key(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"later")
    options = ("--delay-level", "3", "--ordering-key", "order-17")
    assert invoke(cluster, "t", "--file", str(file), *options).exit_code == 0
    assert invoke(cluster, "t", "-", *options, stdin=b"from stdin").exit_code == 0
    for record in cluster.brokers[0].queues["t", 0]:
        assert record.properties["DELAY"] == "3"
        assert record.properties["__SHARDINGKEY"] == "order-17"


def test_the_highest_delay_level_is_that_of_producers() -> None:
    (option,) = (each for each in send.params if each.name == "delay_level")
    assert isinstance(option.type, click.IntRange)
    assert option.type.max == MAX_DELAY_LEVEL


def test_messages_of_one_ordering_key_share_a_queue() -> None:
    with cluster_in_a_thread({"t": {"b0": 4}}) as cluster:
        for key in ("a", "b", "c", "d"):
            sent = invoke(cluster, "t", "x", "--ordering-key", key, "--count", "5")
            (queue,) = {line.split()[1] for line in sent.stdout.splitlines()}
            again = invoke(cluster, "t", "x", "--ordering-key", key)
            assert again.output.split()[1] == queue


def test_count_sends_more_than_one_window_and_prints_a_rate(cluster: FakeCluster) -> None:
    result = invoke(cluster, "t", "x", "--count", "150")
    assert len(result.stdout.splitlines()) == 150
    assert "150 messages in" in result.stderr
    assert len(cluster.brokers[0].queues["t", 0]) == 150


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("t",), "exactly one of BODY, --file and --size"),
        (("t", "x", "--size", "3"), "exactly one of BODY, --file and --size"),
        (("t", "x", "--property", "novalue"), "expected NAME=VALUE"),
        (("t", "x", "--delay-level", "19"), "19 is not in the range 1<=x<=18"),
        (("t", "x", "--delay-level", "0"), "0 is not in the range 1<=x<=18"),
    ],
)
def test_wrong_use(cluster: FakeCluster, arguments: tuple[str, ...], problem: str) -> None:
    result = invoke(cluster, *arguments)
    assert result.exit_code == 2
    assert problem in result.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("t", ""), "empty body"),
        (("t", "x", "--property", "DELAY=3"), "use the message's field delay_level"),
        (("t", "x", "--tags", "a || b"), "a message has one tag"),
        (("no topic", "x"), "topic 'no topic' is not a legal name"),
        (("unknown", "x"), "topic 'unknown' has no route"),
        (("t", "--file", "/no/such/file"), "No such file"),
    ],
)
def test_errors_are_one_line(
    cluster: FakeCluster, arguments: tuple[str, ...], problem: str
) -> None:
    result = invoke(cluster, *arguments)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: ")
    assert problem in line
