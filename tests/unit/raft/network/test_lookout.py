"""Looks at nodes that answer, end, or say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pyromq.protocol.wire.frame import pack_prefix
from pyromq.raft.network import lookout
from pyromq.raft.network.binary_push import GREETING
from pyromq.raft.network.lookout import Finding, look_at, may_ask_for_votes
from tests.support.apache_rocketmq import free_port
from tests.support.dledger import GROUP
from tests.support.loops import on_both_loops
from tests.support.raft_nodes import group, leader_of

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def port_of(handler: Handler) -> AsyncIterator[tuple[str, int]]:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        await handler(reader, writer)
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()
        await server.wait_closed()
        await ended.wait()


def answering(header: bytes) -> Handler:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b"{}"
        writer.write(pack_prefix(4 + len(header) + len(body), len(header)) + header + body)
        await writer.drain()
        await asyncio.sleep(0.05)

    return answer


@on_both_loops
async def test_our_nodes_greet(tmp_path: Path) -> None:
    async with group(tmp_path, 1) as nodes:
        leader = await leader_of(nodes.values())
        assert await look_at(GROUP, "n0", leader.node.address) is Finding.PYROMQ
    assert await look_at(GROUP, "n0", leader.node.address) is Finding.ENDED


@on_both_loops
@pytest.mark.parametrize(
    ("header", "finding"),
    [
        (b'{"code":200,"flag":1,"opaque":1}', Finding.DLEDGER),
        (b'{"code":200,"extFields":{"a":"b"},"flag":1,"opaque":1}', Finding.DLEDGER),
        (b'{"code":200,"extFields":{"%s":"1"},"flag":1}' % GREETING.encode(), Finding.PYROMQ),
        (b"no json", Finding.UNKNOWN),
    ],
)
async def test_an_answer_tells_the_kind(header: bytes, finding: Finding) -> None:
    async with port_of(answering(header)) as address:
        assert await look_at(GROUP, "n1", address) is finding


async def test_a_huge_answer_is_not_read() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x7f\xff\xff\xff")
        await writer.drain()
        await asyncio.sleep(0.05)

    async with port_of(answer) as address:
        assert await look_at(GROUP, "n1", address) is Finding.UNKNOWN


@on_both_loops
async def test_a_silent_node_may_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "LOOK_SECONDS", 0.05)
    is_over = asyncio.Event()

    async def wait(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await is_over.wait()

    async with port_of(wait) as address:
        assert await look_at(GROUP, "n1", address) is Finding.UNKNOWN
        is_over.set()


@on_both_loops
async def test_a_node_that_is_about_to_end_is_asked_again() -> None:
    closed = asyncio.Event()

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        closed.set()

    async with port_of(close) as address:
        look = asyncio.create_task(look_at(GROUP, "n1", address))
        await closed.wait()
    assert await look is Finding.ENDED


async def test_a_name_that_cannot_be_resolved_tells_nothing() -> None:
    assert await look_at(GROUP, "n1", ("a" * 70 + ".invalid", free_port())) is Finding.UNKNOWN


@pytest.mark.parametrize(
    ("leader", "others", "expected"),
    [
        (Finding.ENDED, [Finding.PYROMQ, Finding.PYROMQ], True),
        (Finding.ENDED, [Finding.PYROMQ, Finding.ENDED], True),
        (Finding.ENDED, [Finding.PYROMQ, Finding.DLEDGER], False),
        (Finding.ENDED, [Finding.UNKNOWN, Finding.PYROMQ], False),
        (Finding.PYROMQ, [Finding.PYROMQ, Finding.PYROMQ], False),
        (Finding.UNKNOWN, [Finding.PYROMQ, Finding.PYROMQ], False),
    ],
)
async def test_java_nodes_keep_their_timing(
    monkeypatch: pytest.MonkeyPatch, leader: Finding, others: list[Finding], expected: bool
) -> None:
    findings = {"n0": leader, "n1": others[0], "n2": others[1]}

    async def find(group: str, node: str, address: tuple[str, int]) -> Finding:
        assert (group, address) == (GROUP, ("host", 1))
        return findings[node]

    monkeypatch.setattr(lookout, "look_at", find)
    assert await may_ask_for_votes(GROUP, "n0", dict.fromkeys(findings, ("host", 1))) is expected
