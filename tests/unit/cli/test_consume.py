from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyromq.cli.consume import consume
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.support.patience import DEADLINE
from tests.unit.cli.processes import running
from tests.unit.client.fake_cluster import FakeCluster, cluster_in_a_thread


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster:
        yield cluster


def put(cluster: FakeCluster, *bodies: bytes, properties: bytes = b"") -> None:
    for body in bodies:
        cluster.call(cluster.brokers[0].put("t", 0, body, raw_properties=properties))


def invoke(cluster: FakeCluster, *arguments: str) -> Result:
    return CliRunner().invoke(consume, ["t", *arguments, "--namesrv", cluster.namesrv])


def test_messages_as_text(cluster: FakeCluster) -> None:
    put(cluster, "grüß".encode(), b"\xff", properties=b"TAGS\x01a\x02KEYS\x01k")
    result = invoke(cluster, "--from", "first", "--count", "2")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    when, _, rest = first.partition(" ")
    assert rest == "b0:0#0 tags=a keys=k grüß"
    stored = datetime.fromisoformat(when)
    assert stored.tzinfo is not None
    assert when == stored.astimezone().isoformat(timespec="milliseconds")
    assert second.endswith("b0:0#1 tags=a keys=k \\xff")


def test_messages_as_json(cluster: FakeCluster) -> None:
    put(cluster, b"text", b"\xff", properties=b"TAGS\x01a\x02colour\x01red\x02UNIQ_KEY\x01ID")
    result = invoke(cluster, "--from", "first", "--count", "2", "--json")
    first, second = map(json.loads, result.output.splitlines())
    assert (first["body"], first["queueOffset"], first["msgId"]) == ("text", 0, "ID")
    assert first["properties"] == {"colour": "red"}
    assert first["systemProperties"] == {"TAGS": "a", "UNIQ_KEY": "ID"}
    assert second["bodyBase64"] == "/w=="


def test_an_undecodable_body_is_reported(cluster: FakeCluster) -> None:
    cluster.call(cluster.brokers[0].put("t", 0, b"no LZ4", sys_flag=0x101))
    result = invoke(cluster, "--from", "first", "--count", "1")
    assert result.output.splitlines()[-1].endswith("(cannot decompress the body of 6 bytes)")
    result = invoke(cluster, "--from", "first", "--count", "1", "--json")
    found = json.loads(result.output.splitlines()[-1])
    assert (found["bodyBase64"], found["bodyIsCompressed"]) == ("bm8gTFo0", True)


def test_a_group_resumes(cluster: FakeCluster) -> None:
    put(cluster, b"one", b"two", b"three")
    first = invoke(cluster, "--group", "g", "--from", "first", "--count", "2")
    assert [line.split()[-1] for line in first.output.splitlines()] == ["one", "two"]
    second = invoke(cluster, "--group", "g", "--from", "first", "--count", "1")
    assert second.output.split()[-1] == "three"
    assert cluster.brokers[0].offsets == {("g", "t", 0): 3}


def test_tags(cluster: FakeCluster) -> None:
    put(cluster, b"one", properties=b"TAGS\x01BB")
    put(cluster, b"two", properties=b"TAGS\x01Aa")
    result = invoke(cluster, "--tags", "Aa", "--from", "first", "--count", "1")
    assert result.output.split()[-1] == "two"


def test_an_sql_expression_and_a_time(cluster: FakeCluster) -> None:
    put(cluster, b"old")
    stored = int(datetime(2026, 11, 1, 12, 30).timestamp() * 1000)
    cluster.call(cluster.brokers[0].put("t", 0, b"new", store_timestamp=stored))
    result = invoke(cluster, "--sql", "a > 1", "--from", "2026-11-01T12:30", "--count", "1")
    assert result.output.split()[-1] == "new"
    fields = cluster.brokers[0].seen(RequestCode.PULL_MESSAGE)[0].ext_fields
    assert (fields["expressionType"], fields["subscription"]) == ("SQL92", "a > 1")


def test_a_broker_without_property_filters_says_so(cluster: FakeCluster) -> None:
    remark = "The broker does not support consumer to filter message by SQL92"
    cluster.brokers[0].refusals[RequestCode.PULL_MESSAGE] = [(ResponseCode.SYSTEM_ERROR, remark)]
    result = invoke(cluster, "--sql", "a > 1")
    assert result.exit_code == 1
    assert remark in result.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--sql", "a = 1", "--tags", "b"), "--tags or --sql, not both"),
        (("--from", "yesterday"), "expected first, last or a time"),
    ],
)
def test_wrong_use(cluster: FakeCluster, arguments: tuple[str, ...], problem: str) -> None:
    result = invoke(cluster, *arguments)
    assert result.exit_code == 2
    assert problem in result.output


def test_errors_are_one_line(cluster: FakeCluster) -> None:
    result = CliRunner().invoke(consume, ["no topic", "--namesrv", cluster.namesrv])
    assert result.exit_code == 1
    assert result.output.startswith("Error: topic 'no topic' is not a legal name")


def test_it_waits_for_a_topic_and_stops_cleanly_at_ctrl_c(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    arguments = ["consume", "new", "--namesrv", cluster.namesrv]
    with running(*arguments, directory=tmp_path) as command:
        command.wait_for("does not exist yet")
        cluster.topics["new"] = {"b0": 1}
        cluster.call(cluster.brokers[0].put("new", 0, b"hello"))
        command.wait_for("hello")
        assert command.end(signal.SIGINT) == 128 + signal.SIGINT
        assert "Traceback" not in command.printed


def test_a_terminal_gets_a_rate_line(cluster: FakeCluster, tmp_path: Path) -> None:
    put(cluster, b"[bold]one[/bold]", b"two")
    arguments = ["consume", "t", "--from", "first", "--namesrv", cluster.namesrv]
    with running(*arguments, directory=tmp_path, terminal=True) as command:
        command.wait_for("[bold]one[/bold]")
        command.wait_for("two")
        command.wait_for("waiting for more")
        assert command.end(signal.SIGTERM) == 128 + signal.SIGTERM
        assert "Traceback" not in command.printed


@pytest.mark.parametrize("more", [0, 10])
def test_a_closed_pipe_ends_it(cluster: FakeCluster, more: int) -> None:
    """`pyromq consume t | head -1` ends at once, not at the next message."""
    put(cluster, *[b"line" * 1000] * (1 + 10 * more))
    command = [sys.executable, "-m", "pyromq", "consume", "t", "--from", "first"]
    process = subprocess.Popen(
        [*command, "--namesrv", cluster.namesrv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stderr
    try:
        assert b"line" in process.stdout.readline()
        process.stdout.close()
        put(cluster, *[b"more"] * more)
        assert process.wait(DEADLINE) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_closed_pipe_ends_the_wait_for_a_topic(cluster: FakeCluster) -> None:
    command = [sys.executable, "-m", "pyromq", "consume", "new", "--namesrv", cluster.namesrv]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    try:
        assert b"does not exist yet" in process.stderr.readline()
        process.stdout.close()
        assert process.wait(DEADLINE) == 128 + signal.SIGPIPE
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
