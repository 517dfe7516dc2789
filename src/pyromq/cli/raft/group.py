"""Find the nodes of a raft group and ask each for its state: `Search`.

A group is given as the name of its broker, the name of the group, or the address of one of its
brokers. The NameServer knows the registered brokers, and each broker the raft addresses of all
nodes.

Requests to brokers and NameServers are signed. Raft ports have no accounts, and those of RocketMQ
no TLS: they are asked with TLS first if that is on, then without.

| node | source | missing |
| --- | --- | --- |
| a broker of pyromq | GET_REPLICATION_STATUS | nothing |
| RocketMQ's own broker | its settings and runtime info; METADATA on its raft port | its term and \
entries; its lag is known if a node of pyromq leads |
| its broker does not answer | METADATA on its raft port | the same, for both kinds |

Used by `status` and `transfer`, on the loop of the command.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

import click
import orjson

from pyromq.base.settings import ConfigError
from pyromq.cli.client_options import Identity
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.java.properties import PropertiesError, parse_properties
from pyromq.protocol.wire.bodies import ClusterInfo, KVTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.raft.network.binary_push import GREETING
from pyromq.raft.network.json_bodies import RaftCode, decode_fields, encode_fields
from pyromq.remoting.address import AddressError, parse_address
from pyromq.remoting.errors import RemotingError
from pyromq.store.raft_settings import RaftSettings

PYROMQ: Final = "pyromq"
DLEDGER: Final = "DLedger"
#: How long a broker or a node may take to answer.
_ANSWER_SECONDS: Final = 3.0
_SELF: Final = "pyromq-cli"
_ALL_DOWN: Final = "If all its brokers are down, start a quorum of them"


@dataclass(slots=True)
class NodeView:
    """What is known of a node; None is unknown."""

    id: str
    #: Of its raft port.
    address: str
    #: As clients use it.
    broker_address: str | None = None
    kind: str | None = None
    #: Whether the node answers, through its broker or its raft port.
    is_up: bool = False
    role: str | None = None
    term: int | None = None
    leader: str | None = None
    begin_index: int | None = None
    end_index: int | None = None
    committed_index: int | None = None
    #: The end of the committed messages, also known of RocketMQ's brokers.
    committed_position: int | None = None
    #: Entries that it lacks, as the leader knows.
    lag: int | None = None
    #: Whether the leader is connected to it.
    connected: bool | None = None
    #: SYNC_MASTER once it accepts messages.
    broker_role: str | None = None
    reason: str | None = None
    #: Milliseconds since 1970.
    changed_at: int | None = None


@dataclass(slots=True)
class GroupView:
    """What is known of a group."""

    name: str
    broker_name: str
    nodes: dict[str, NodeView] = field(default_factory=dict)

    @property
    def quorum(self) -> int:
        """The number of nodes that decide."""
        return len(self.nodes) // 2 + 1

    @property
    def leader(self) -> NodeView | None:
        """The node that leads, and that most others follow."""
        claims = [node for node in self.nodes.values() if node.is_up and node.leader == node.id]
        votes = Counter(node.leader for node in self.nodes.values() if node.is_up)
        return max(claims, key=lambda node: (votes[node.id], node.term or 0), default=None)

    @property
    def agreeing(self) -> int:
        """The number of nodes that follow the leader, itself included."""
        leader = self.leader
        if leader is None:
            return 0
        return sum(node.is_up and node.leader == leader.id for node in self.nodes.values())

    @property
    def is_working(self) -> bool:
        """Whether there is a leader with a quorum."""
        return self.leader is not None and self.agreeing >= self.quorum

    def to_value(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        leader = self.leader
        return {
            "group": self.name,
            "brokerName": self.broker_name,
            "leader": None if leader is None else leader.id,
            "quorum": self.quorum,
            "agreeing": self.agreeing,
            "isWorking": self.is_working,
            "nodes": [_camel(asdict(node)) for node in self.nodes.values()],
        }


class Search:
    """Asks brokers and nodes; use it as `async with`."""

    def __init__(self, namesrv: str, identity: Identity | None = None) -> None:
        identity = identity or Identity()
        self._namesrv = namesrv
        self._client = identity.client(connect_timeout=_ANSWER_SECONDS)
        self._node_clients = [Identity().client(connect_timeout=_ANSWER_SECONDS)]
        if identity.tls:
            self._node_clients.insert(
                0, Identity(tls=identity.tls).client(connect_timeout=_ANSWER_SECONDS)
            )
        #: Why brokers that answer do not tell their settings.
        self._refusals: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (self._client, *self._node_clients):
            await client.close()

    async def find(self, target: str | None) -> GroupView:
        """Return the group that `target` names: a broker, a group, an address, or the only one.

        Raises click.ClickException if there is none, or nobody answers.
        """
        brokers: dict[str, _Broker] = {}
        if target is not None and _is_address(target):
            found = await self._ask(target)
            if found is None:
                raise click.ClickException(f"no answer from {target}")
            if found.raft is None:
                refusal = next(iter(self._refusals), None)
                raise click.ClickException(refusal or f"{target} is not in a raft group")
            brokers = {target: found}
            name = found.broker_name
            namesrv = found.namesrv or self._namesrv
            try:
                registered = (await self._registered(namesrv)).get(name, ())
            except click.ClickException:
                registered = ()  # the others are asked on their raft ports
            brokers |= await self._ask_all(set(registered) - {target})
        else:
            table = await self._registered(self._namesrv)
            wanted = table if target not in table else {target: table[target]}
            brokers = await self._ask_all(address for each in wanted.values() for address in each)
        return await self._join(brokers, target, wanted_everywhere=target is None)

    async def request(
        self, address: str, command: RemotingCommand, seconds: float = _ANSWER_SECONDS
    ) -> RemotingCommand:
        """Send a request. Raises click.ClickException if there is no answer."""
        try:
            return await self._client.request(address, command, seconds)
        except RemotingError as error:
            raise click.ClickException(f"no answer from {address}: {error}") from error

    async def request_node(
        self, address: str, command: RemotingCommand, seconds: float = _ANSWER_SECONDS
    ) -> RemotingCommand:
        """Send a request to a raft port. Raises click.ClickException if there is no answer."""
        problem: RemotingError | None = None
        for client in self._node_clients:
            try:
                return await client.request(address, command, seconds)
            except RemotingError as error:
                problem = problem or error
        raise click.ClickException(f"no answer from {address}: {problem}") from problem

    # Brokers

    async def _registered(self, namesrv: str) -> dict[str, tuple[str, ...]]:
        """Return the addresses of brokers by their names."""
        problem = "no address given"
        for address in filter(None, map(str.strip, namesrv.split(";"))):
            try:
                command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
                answer = await self._client.request(address, command, _ANSWER_SECONDS)
                table = ClusterInfo.decode(answer.body).broker_addr_table
                return {name: tuple(data.broker_addrs.values()) for name, data in table.items()}
            except (RemotingError, AddressError, BodyError) as error:
                problem = f"{address}: {error}"
        raise click.ClickException(f"no answer from NameServer {problem}")

    async def _ask_all(self, addresses: Iterable[str]) -> dict[str, _Broker]:
        wanted = sorted(set(addresses))
        found = await asyncio.gather(*map(self._ask, wanted))
        pairs = zip(wanted, found, strict=True)
        return {address: broker for address, broker in pairs if broker is not None}

    async def _ask(self, address: str) -> _Broker | None:
        """Return what a broker tells; None if it does not answer."""
        try:
            settings = await self._settings(address)
            command = RemotingCommand(RequestCode.GET_REPLICATION_STATUS)
            answer = await self._client.request(address, command, _ANSWER_SECONDS)
            name = settings.get("brokerName", "")
            namesrv = settings.get("namesrvAddr", "")
            if answer.code == ResponseCode.SUCCESS:
                figures = orjson.loads(answer.body)
                raft = figures.get("raft")
                return _Broker(address, name, namesrv, PYROMQ, figures["role"], raft)
            if settings.get("enableDLegerCommitLog") != "true":
                return _Broker(address, name, namesrv, DLEDGER, "", None)
            end = await self._committed(address)
            raft = {
                "group": settings.get("dLegerGroup", ""),
                "selfId": settings.get("dLegerSelfId", ""),
                "committedPosition": end,
                "peers": _peers(settings.get("dLegerPeers", "")),
            }
            role = settings.get("brokerRole", "")
            return _Broker(address, name, namesrv, DLEDGER, role, raft)
        except (RemotingError, AddressError, PropertiesError, ConfigError):
            return None
        except (ValueError, KeyError, TypeError):
            return None  # anybody may register

    async def _settings(self, address: str) -> Mapping[str, str]:
        command = RemotingCommand(RequestCode.GET_BROKER_CONFIG)
        answer = await self._client.request(address, command, _ANSWER_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            self._refusals.append(f"{address} refuses: {answer.remark or f'code {answer.code}'}")
        return parse_properties(answer.body)

    async def _committed(self, address: str) -> int | None:
        command = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await self._client.request(address, command, _ANSWER_SECONDS)
        value = KVTable.decode(answer.body).table.get("commitLogMaxOffset", "")
        return int(value) if value.isdecimal() else None

    # Nodes

    async def _join(
        self, brokers: Mapping[str, _Broker], target: str | None, *, wanted_everywhere: bool
    ) -> GroupView:
        members = [broker for broker in brokers.values() if broker.raft is not None]
        groups = {broker.group for broker in members}
        if target is not None and target in groups:
            members = [broker for broker in members if broker.group == target]
        elif target is not None and not _is_address(target):
            members = [broker for broker in members if broker.broker_name == target]
        groups = {broker.group for broker in members}
        if not members:
            what = "no raft group" if wanted_everywhere else f"no raft group {target}"
            raise click.ClickException(
                f"{what} at NameServer {self._namesrv}: none of its brokers that answer is a "
                f"member. {next(iter(self._refusals), _ALL_DOWN)}"
            )
        if len(groups) > 1:
            raise click.ClickException(
                f"several raft groups: {', '.join(sorted(groups))}; name one of them"
            )
        view = GroupView(members[0].group, members[0].broker_name)
        for broker in members:
            for node, address in broker.peers().items():
                view.nodes.setdefault(node, NodeView(node, address))
        view.nodes = dict(sorted(view.nodes.items()))
        for broker in members:
            broker.describe(view.nodes)
        await asyncio.gather(
            *(self._ask_node(view, node) for node in view.nodes.values() if node.term is None)
        )
        _add_lags(view, members)
        return view

    async def _ask_node(self, view: GroupView, node: NodeView) -> None:
        """Ask a raft port for the leader: METADATA, as DLedger's clients do."""
        fields = {"group": view.name, "remoteId": node.id, "localId": _SELF}
        command = RemotingCommand(RaftCode.METADATA, body=encode_fields(fields))
        try:
            answer = await self.request_node(node.address, command)
            fields = decode_fields(answer.body)
        except (click.ClickException, AddressError, ValueError):
            return
        if fields.get("code", 200) != 200:
            node.reason = f"its raft port answers with code {fields.get('code')}"
            return
        leader = fields.get("leaderId")
        node.is_up = True
        node.kind = PYROMQ if GREETING in (answer.ext_fields or {}) else DLEDGER
        node.leader = leader if isinstance(leader, str) and leader else None
        node.role = (
            "CANDIDATE"
            if node.leader is None
            else "LEADER"
            if node.leader == node.id
            else "FOLLOWER"
        )


@dataclass(frozen=True, slots=True)
class _Broker:
    """A broker that answers."""

    address: str
    broker_name: str
    namesrv: str
    kind: str
    role: str
    #: The figures of `BrokerRaft`, or the part of them that is known; None outside of groups.
    raft: dict[str, Any] | None

    @property
    def group(self) -> str:
        assert self.raft is not None
        return str(self.raft["group"])

    def peers(self) -> dict[str, str]:
        """Return the raft addresses of all nodes that it knows."""
        assert self.raft is not None
        own = {self.raft["selfId"]: self.raft["address"]} if "address" in self.raft else {}
        return own | {peer["id"]: peer["address"] for peer in self.raft["peers"]}

    def describe(self, nodes: Mapping[str, NodeView]) -> None:
        """Enter what this broker knows about its own node."""
        assert self.raft is not None
        raft, node = self.raft, nodes.get(self.raft["selfId"])
        if node is None:
            return
        node.broker_address, node.kind, node.is_up = self.address, self.kind, True
        node.broker_role = self.role
        node.committed_position = raft.get("committedPosition")
        if self.kind == PYROMQ:
            node.role, node.term, node.leader = raft["role"], raft["term"], raft["leader"]
            node.begin_index, node.end_index = raft["beginIndex"], raft["endIndex"]
            node.committed_index = raft["committedIndex"]
            node.reason, node.changed_at = raft["reason"], raft["changedAt"]


def _add_lags(view: GroupView, members: Iterable[_Broker]) -> None:
    leader = view.leader
    if leader is None:
        return
    for broker in members:
        if broker.raft is None or broker.raft["selfId"] != leader.id or broker.kind != PYROMQ:
            continue
        leader.lag, leader.connected = 0, True
        for peer in broker.raft["peers"]:
            node = view.nodes[peer["id"]]
            node.connected, node.lag = peer["connected"], peer["lag"]
            if node.kind is None and peer["kind"] in (PYROMQ, DLEDGER):
                node.kind = peer["kind"]


def _peers(text: str) -> list[dict[str, str]]:
    peers = RaftSettings(dleger_peers=text).raft_peers
    return [{"id": node, "address": f"{host}:{port}"} for node, (host, port) in peers.items()]


def _is_address(target: str) -> bool:
    try:
        parse_address(target)
    except AddressError:
        return False
    return True


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {}
    for name, value in fields.items():
        first, *others = name.split("_")
        renamed[first + "".join(map(str.title, others))] = value
    return renamed
