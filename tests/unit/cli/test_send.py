from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.cli.send import _MAX_LINES, send
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.unit.cli.processes import running
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


def test_messages_of_one_ordering_key_share_a_queue() -> None:
    with cluster_in_a_thread({"t": {"b0": 4}}) as cluster:
        for key in ("a", "b", "c", "d"):
            sent = invoke(cluster, "t", "x", "--ordering-key", key, "--count", "5")
            (queue,) = {line.split()[1] for line in sent.stdout.splitlines()}
            again = invoke(cluster, "t", "x", "--ordering-key", key)
            assert again.output.split()[1] == queue


def refuse(cluster: FakeCluster, *, after: int, count: int) -> None:
    """Let the broker refuse `count` sends after the first `after`."""
    broker = cluster.brokers[0]
    answer = broker._answer
    seen = 0

    async def refusing(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        if command.code == RequestCode.SEND_MESSAGE_V2:
            seen += 1
            if after < seen <= after + count:
                broker.refusals[command.code].append((ResponseCode.MESSAGE_ILLEGAL, "no entry"))
        await answer(command, writer)

    broker._answer = refusing  # type: ignore[method-assign]


def test_a_few_messages_print_a_line_each_and_a_summary(cluster: FakeCluster) -> None:
    result = invoke(cluster, "t", "x", "--count", "20")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 20
    (summary,) = result.stderr.splitlines()
    assert summary.startswith("sent 20 messages in ")
    assert "latency p50 " in summary


def test_many_messages_print_a_summary_only(cluster: FakeCluster) -> None:
    result = invoke(cluster, "t", "x", "--count", "150")
    assert result.exit_code == 0
    assert result.stdout == ""
    (summary,) = result.stderr.splitlines()
    assert summary.startswith("sent 150 messages in ")
    assert summary.isprintable()
    assert len(cluster.brokers[0].queues["t", 0]) == 150


def test_verbose_prints_a_line_for_each_of_many_messages(cluster: FakeCluster) -> None:
    result = invoke(cluster, "t", "x", "--count", "150", "--verbose")
    offsets = [line.split()[2] for line in result.stdout.splitlines()]
    assert offsets == [f"offset={number}" for number in range(150)]


def test_json_of_one_message_is_one_object(cluster: FakeCluster) -> None:
    result = invoke(cluster, "t", "x", "--json")
    (record,) = cluster.brokers[0].queues["t", 0]
    sent = json.loads(result.stdout)
    assert sent.pop("offsetMsgId")
    assert sent == {
        "type": "message",
        "topic": "t",
        "brokerName": "b0",
        "queueId": 0,
        "queueOffset": 0,
        "msgId": record.properties["UNIQ_KEY"],
        "status": "SEND_OK",
    }
    assert result.stderr == ""


def test_json_of_many_messages_ends_with_a_summary(cluster: FakeCluster) -> None:
    result = invoke(cluster, "t", "x", "--count", "150", "--json")
    *messages, summary = map(json.loads, result.stdout.splitlines())
    assert [message["queueOffset"] for message in messages] == list(range(150))
    assert {message["type"] for message in messages} == {"message"}
    assert (summary["type"], summary["topic"], summary["count"]) == ("summary", "t", 150)
    assert (summary["sent"], summary["failed"], summary["errors"]) == (150, 0, {})
    assert summary["statuses"] == {"SEND_OK": 150}
    assert summary["latencyMs"].keys() == {"p50", "p99", "max"}
    assert summary["messagesPerSecond"] > 0
    assert result.stderr == ""


def test_failures_are_counted_and_make_the_exit_code_1(cluster: FakeCluster) -> None:
    refuse(cluster, after=100, count=10)
    result = invoke(cluster, "t", "x", "--count", "150")
    assert result.exit_code == 1
    summary, failures = result.stderr.splitlines()
    assert summary.startswith("sent 140 of 150 messages in ")
    assert failures.startswith("10 failed: ")
    assert "no entry" in failures
    assert len(cluster.brokers[0].queues["t", 0]) == 140


def test_failures_as_json(cluster: FakeCluster) -> None:
    refuse(cluster, after=3, count=2)
    result = invoke(cluster, "t", "x", "--count", "10", "--json")
    assert result.exit_code == 1
    *lines, summary = map(json.loads, result.stdout.splitlines())
    failures = [line for line in lines if line["type"] == "failure"]
    assert len(lines) == 10
    assert len(failures) == 2
    assert "no entry" in failures[0]["error"]
    assert (summary["sent"], summary["failed"]) == (8, 2)
    assert sum(summary["errors"].values()) == 2


def test_a_run_is_abandoned_when_every_send_fails(cluster: FakeCluster) -> None:
    refuse(cluster, after=1, count=10_000)
    result = invoke(cluster, "t", "x", "--count", "5000")
    assert result.exit_code == 1
    assert "sent 1 of 5,000 messages" in result.stderr
    assert result.stderr.endswith("gave up after 64 failures in a row\n")
    assert len(cluster.brokers[0].seen(RequestCode.SEND_MESSAGE_V2)) < 200


def test_the_first_failure_ends_the_run_with_one_line(cluster: FakeCluster) -> None:
    refuse(cluster, after=0, count=1)
    result = invoke(cluster, "t", "x", "--count", "50")
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "no entry" in line


def test_help_states_how_many_messages_print_a_line_each() -> None:
    text = " ".join(CliRunner().invoke(send, ["--help"]).output.split())
    assert f"Up to {_MAX_LINES} print a line each" in text
    assert f"even above {_MAX_LINES} messages" in text


def test_a_terminal_shows_a_bar_and_then_the_summary(cluster: FakeCluster, tmp_path: Path) -> None:
    arguments = ["send", "t", "x", "--count", "500", "--namesrv", cluster.namesrv]
    with running(*arguments, directory=tmp_path, terminal=True) as command:
        assert command.exit_code() == 0
    bar, _, summary = command.printed.partition("sent 500 messages in ")
    assert "sending" in bar
    assert "/500" in bar
    assert "latency p50" in summary
    assert "msgId" not in command.printed


def test_lines_on_a_terminal_replace_the_bar(cluster: FakeCluster, tmp_path: Path) -> None:
    arguments = ["send", "t", "x", "--count", "50", "-v", "--namesrv", cluster.namesrv]
    with running(*arguments, directory=tmp_path, terminal=True) as command:
        assert command.exit_code() == 0
    assert command.printed.count("msgId=") == 50
    assert "\x1b" not in command.printed


def test_ctrl_c_ends_a_run_with_its_summary(cluster: FakeCluster, tmp_path: Path) -> None:
    arguments = ["send", "t", "x", "--count", "100000000", "-v", "--namesrv", cluster.namesrv]
    with running(*arguments, directory=tmp_path) as command:
        command.wait_for("offset=10 ")
        assert command.end(signal.SIGINT) == 128 + signal.SIGINT
    assert " of 100,000,000 messages in " in command.printed
    assert "Traceback" not in command.printed


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
