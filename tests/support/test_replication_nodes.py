"""Nodes of both kinds keep what they promise: ports, directory, signals, and the end of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingClient
from tests.support.apache_rocketmq import accepts
from tests.support.crash import send_command
from tests.support.java_pair import Node, NodeError, NodeSettings, Role
from tests.support.log_compare import assert_same_logs
from tests.support.patience import DEADLINE, wait_until
from tests.support.replication_nodes import make_node, name_server, pair


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with name_server() as address:
        yield address


def _send(address: str, numbers: range) -> set[int]:
    """Send messages in batches of one queue each; return the response codes."""

    async def send() -> set[int]:
        client = RemotingClient()
        codes = set()
        for first in numbers[::40]:
            batch = [(first + inner) * 12 for inner in range(40)]
            answer = await client.request(address, send_command(batch), DEADLINE)
            codes.add(answer.code)
        await client.close()
        return codes

    return asyncio.run(send())


@pytest.mark.parametrize(
    "kind",
    ["pyromq", pytest.param("java", marks=[pytest.mark.interop, pytest.mark.soak])],
)
def test_a_node_keeps_ports_and_log_when_it_is_killed_and_stopped(
    kind: str, namesrv: str, tmp_path: Path
) -> None:
    node = make_node("java" if kind == "java" else "pyromq", NodeSettings(tmp_path, namesrv))
    with node:
        assert node.role is Role.ASYNC_MASTER
        assert _send(node.address, range(400)) == {ResponseCode.SUCCESS}
        end = node.log_end()
        node.wait_for_log_end(end)
        assert end > 400_000
        _check_pause(node, end)
        for finish in (node.kill, node.stop):
            pid = node.pid
            finish()
            assert not node.runs
            assert not accepts(node.address)
            with pytest.raises(NodeError, match="does not run"):
                node.pause()
            node.start()
            assert node.pid != pid
            node.wait_for_log_end(end)
            assert node.log_end() == end
        assert "boot success" in node.log()
    assert not node.runs
    assert_same_logs(node.store, node.store)
    node.wipe()
    assert not node.store.exists()


def _check_pause(node: Node, end: int) -> None:
    node.pause()
    with pytest.raises(OSError, match="timed out"):
        node.runtime_info(timeout=0.5)  # silence is the subject
    node.resume()
    wait_until(lambda: node.log_end() == end)


def test_a_node_that_cannot_start_shows_its_log(namesrv: str, tmp_path: Path) -> None:
    settings = NodeSettings(tmp_path, namesrv, properties={"maxMessageSize": "many"})
    with pytest.raises(NodeError, match="maxMessageSize"):
        make_node("pyromq", settings).start()


@pytest.mark.interop
@pytest.mark.soak
def test_a_java_replica_continues_after_kills(namesrv: str, tmp_path: Path) -> None:
    with pair("java", "java", tmp_path, namesrv) as (master, replica):
        wait_until(lambda: _send(master.address, range(40)) == {ResponseCode.SUCCESS})
        replica.kill()
        # The master may not have noticed yet, or it has no replica.
        alone = {ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
        assert _send(master.address, range(40, 440)) <= alone
        replica.start()
        replica.wait_for_log_end(master.log_end())
        master.kill()
        master.start()
        assert _send(master.address, range(440, 480)) <= {ResponseCode.SUCCESS} | alone
        replica.wait_for_log_end(master.log_end())
        master.stop()
        replica.stop()
    assert assert_same_logs(master.store, replica.store).records >= 520
