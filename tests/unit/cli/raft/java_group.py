"""RocketMQ's own raft nodes, as far as `pyromq raft` sees them: NameServer, brokers, raft ports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from pyromq.protocol.wire.bodies import BrokerData, ClusterInfo, KVTable
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.raft.network.json_bodies import RaftCode
from pyromq.remoting.connection import Connection
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service

Answer = Callable[[RemotingCommand], RemotingCommand]


class JavaGroup:
    """Three nodes, n0 to n2, of group RaftNode00; `leader` is the id that all of them know."""

    def __init__(self) -> None:
        self.leader = "n1"
        self.down: set[str] = set()
        self.transfers: list[dict[str, Any]] = []
        self.transfer_code = 200
        self._loop = asyncio.new_event_loop()
        self._servers: dict[str, RemotingServer] = {}

    @property
    def namesrv(self) -> str:
        """The address of the NameServer."""
        return self.address("namesrv")

    def address(self, name: str) -> str:
        """The address of a server: namesrv, n0 (a broker), n0-raft."""
        return f"127.0.0.1:{self._servers[name].port}"

    async def start(self) -> None:
        """Start all servers."""
        await self._serve("namesrv", {RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster})
        for node in ("n0", "n1", "n2"):
            handlers = {
                RequestCode.GET_BROKER_CONFIG: self._config(node),
                RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            }
            await self._serve(node, handlers)
            raft = {
                RaftCode.METADATA: self._metadata(node),
                RaftCode.LEADERSHIP_TRANSFER: self._transfer,
            }
            await self._serve(f"{node}-raft", raft)

    async def stop(self, *names: str) -> None:
        """Stop some servers, or all."""
        for name in names or tuple(self._servers):
            await self._servers[name].stop()

    async def _serve(self, name: str, answers: Mapping[Any, Answer]) -> None:
        def handler(answer: Answer) -> Callable[[Connection, RemotingCommand], RemotingCommand]:
            return lambda _, request: answer(request)

        server = RemotingServer(host="127.0.0.1")
        handlers = {int(code): handler(answer) for code, answer in answers.items()}
        await server.start(Service(handlers=handlers))
        self._servers[name] = server

    def _cluster(self, request: RemotingCommand) -> RemotingCommand:
        addresses = {
            0 if node == self.leader else int(node[1]) + 1: self.address(node)
            for node in ("n0", "n1", "n2")
        }
        data = BrokerData("DefaultCluster", "RaftNode00", addresses)
        return request.answer(body=ClusterInfo({"RaftNode00": data}).encode())

    def _config(self, node: str) -> Answer:
        def answer(request: RemotingCommand) -> RemotingCommand:
            peers = ";".join(
                f"{each}-{self.address(each + '-raft')}" for each in ("n0", "n1", "n2")
            )
            role = "SYNC_MASTER" if node == self.leader else "SLAVE"
            text = (
                f"brokerName=RaftNode00\nnamesrvAddr={self.namesrv}\nbrokerRole={role}\n"
                "enableDLegerCommitLog=true\ndLegerGroup=RaftNode00\n"
                f"dLegerSelfId={node}\ndLegerPeers={peers}\n"
            )
            return request.answer(body=text.encode())

        return answer

    def _runtime(self, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=KVTable({"commitLogMaxOffset": "4711"}).encode())

    def _metadata(self, node: str) -> Answer:
        def answer(request: RemotingCommand) -> RemotingCommand:
            assert orjson.loads(request.body)["remoteId"] == node
            fields = {"code": 200, "term": -1, "leaderId": self.leader}
            return request.answer(code=200, body=orjson.dumps(fields))

        return answer

    def _transfer(self, request: RemotingCommand) -> RemotingCommand:
        fields = orjson.loads(request.body)
        self.transfers.append(fields)
        if self.transfer_code == 200:
            self.leader = fields["transfereeId"]
        return request.answer(code=200, body=orjson.dumps({"code": self.transfer_code, "term": 7}))

    # From the test's thread

    def run(self, coroutine: Any) -> None:
        """Run a coroutine on the servers' loop."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[JavaGroup]:
        """Run a group on a loop of its own."""
        group = cls()
        thread = threading.Thread(target=group._loop.run_forever, daemon=True)
        thread.start()
        group.run(group.start())
        try:
            yield group
        finally:
            group.run(group.stop())
            group._loop.call_soon_threadsafe(group._loop.stop)
            thread.join()
            group._loop.close()
