"""`pyromq raft transfer`: let another node of a raft group lead.

Finds the leader, sends it the order, and waits until the other node is the master. A leader that is
RocketMQ's own gets DLedger's request on its raft port instead.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import click

from pyromq.base.command_options import namesrv_option
from pyromq.cli.client_options import Identity, identity_options
from pyromq.cli.raft.group import DLEDGER, GroupView, NodeView, Search
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.leadership import TransferLeadershipRequestHeader
from pyromq.raft.messages import Code, TransferRequest
from pyromq.raft.network.json_bodies import (
    BodyError,
    RaftCode,
    decode_response,
    encode_request,
)

#: The leader waits for the other node to catch up and to win an election.
_TRANSFER_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.2
#: How long the new leader may take to become the master: it commits its whole log first.
_MASTER_SECONDS: Final = 30.0


@click.command()
@click.argument("node")
@click.argument("group", required=False)
@namesrv_option
@identity_options
def transfer(node: str, group: str | None, namesrv: str, identity: Identity) -> None:
    """Let NODE lead its raft GROUP, for example before maintenance of the leader's machine.

    NODE is an id such as n1. GROUP is the name of a broker or of a group, or the address of one of
    its brokers; it may be left out if the NameServer knows one group only. The node must be up to
    date, but for 1000 entries. Sends fail for about a second; clients retry them.

    With preferredLeaderId, the group soon returns to a preferred node.

    \b
    Examples
        pyromq raft transfer n1
        pyromq raft transfer n1 broker-a --namesrv 10.0.0.1:9876
    """
    asyncio.run(_transfer(Search(namesrv, identity), node, group))


async def _transfer(search: Search, node_id: str, group: str | None) -> None:
    async with search:
        view = await search.find(group)
        node, leader = view.nodes.get(node_id), view.leader
        if node is None:
            raise click.ClickException(
                f"{node_id} is not a node of group {view.name}: it has {', '.join(view.nodes)}"
            )
        if leader is None:
            raise click.ClickException(
                f"group {view.name} has no leader: start a quorum of its nodes "
                f"({view.quorum} of {len(view.nodes)})"
            )
        if leader is node:
            click.echo(f"{node_id} leads group {view.name} already")
            return
        if not node.is_up:
            raise click.ClickException(f"{node_id} does not answer: start it first")
        await _order(search, view, leader, node)
        click.echo(await _outcome(search, view, node_id))


async def _order(search: Search, view: GroupView, leader: NodeView, node: NodeView) -> None:
    """Send the order to the leader. Raises click.ClickException if it fails."""
    if leader.kind == DLEDGER:
        await _order_java(search, view, leader, node)
        return
    if leader.broker_address is None:
        raise click.ClickException(
            f"the broker of the leader, {leader.id}, is not registered or does not answer: wait, "
            "or give its address instead of the group's name"
        )
    header = TransferLeadershipRequestHeader(node.id)
    command = RemotingCommand(RequestCode.TRANSFER_LEADERSHIP, ext_fields=header.encode())
    answer = await search.request(leader.broker_address, command, _TRANSFER_SECONDS)
    if answer.code != ResponseCode.SUCCESS:
        raise click.ClickException(
            f"{leader.id} at {leader.broker_address}: {answer.remark or f'code {answer.code}'}"
        )


async def _order_java(search: Search, view: GroupView, leader: NodeView, node: NodeView) -> None:
    terms = [each.term for each in view.nodes.values() if each.term is not None]
    if not terms:
        raise click.ClickException(
            f"the leader, {leader.id}, is RocketMQ's own and wants its term in the request, which "
            "only a node of pyromq in the group could tell: use DLedger's own command, "
            "leadershipTransfer"
        )
    request = TransferRequest(
        group=view.name,
        local_id=leader.id,
        remote_id=leader.id,
        leader_id=leader.id,
        term=max(terms),
        transfer_id=leader.id,
        transferee_id=node.id,
        take_leadership_ledger_index=-1,
    )
    command = RemotingCommand(RaftCode.LEADERSHIP_TRANSFER, body=encode_request(request))
    answer = await search.request_node(leader.address, command, _TRANSFER_SECONDS)
    try:
        code = decode_response(RaftCode.LEADERSHIP_TRANSFER, answer.body).code
    except BodyError as error:
        raise click.ClickException(f"{leader.address} answered nonsense: {error}") from error
    if code is not Code.SUCCESS:
        raise click.ClickException(f"{leader.id} at {leader.address}: {code.name}")


async def _outcome(search: Search, view: GroupView, node_id: str) -> str:
    """Wait until the node is the master; return what to print."""
    target = view.name if view.name != view.broker_name else view.broker_name
    deadline = time.monotonic() + _MASTER_SECONDS
    while True:
        node = (await search.find(target)).nodes[node_id]
        if node.role == "LEADER" and (node.broker_role or "").endswith("MASTER"):
            term = "" if node.term is None else f" in term {node.term}"
            return f"{node_id} leads group {view.name}{term} and accepts messages"
        if time.monotonic() >= deadline:
            raise click.ClickException(
                f"{node_id} took over, but is not the master after {_MASTER_SECONDS:g} s: see "
                f"pyromq raft status {target}"
            )
        await asyncio.sleep(_POLL_SECONDS)
