"""A broker as a member of its raft group: joins the node (`pyromq.raft`) to store and role.

| the node | the broker |
| --- | --- |
| follows, or stands for election | is a replica: refuses sends, copies the leader's tables |
| leads, and a quorum has its log | appends an entry of its own if old entries wait for one |
| leads, and its whole log is committed | is the master: accepts sends, registers with id 0 |
| commits entries | makes them visible, wakes long polls, answers sends |
| lost what was committed, or its log | stops, with the reason |

Sends are refused from the moment the node ceases to lead, before the broker's role has changed: the
store steps down within the same event. A role is taken completely before the next one, and the
group may be several changes ahead meanwhile; only the last one counts.

Topics, groups and offsets are not in the log. A follower copies them from the leader, as a replica
does from its master (`services.metadata_sync`).

Owned by the broker. Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from pyromq.base.clock import now_ms
from pyromq.base.periodic import PeriodicTasks
from pyromq.broker.role import Role as BrokerPart
from pyromq.broker.role import RoleError
from pyromq.broker.role_switch import RoleSwitch
from pyromq.broker.services.metadata_sync import MetadataSync
from pyromq.broker.services.registration import Registration
from pyromq.protocol.message.entry import ENTRY_HEADER_SIZE
from pyromq.protocol.message.message_id import HOST_SIZE_V4
from pyromq.protocol.message.record import MessageRecord, encode_record, with_physical_offset
from pyromq.protocol.message.sysflag import TRANSACTION_ROLLBACK
from pyromq.protocol.names import RAFT_TOPIC
from pyromq.raft.log import RaftLog
from pyromq.raft.member import Role
from pyromq.raft.messages import NONE, Code
from pyromq.raft.node import NodeSettings, PeerStatus, RaftNode
from pyromq.store.chunk import host_flag
from pyromq.store.config import BrokerRole
from pyromq.store.message_store import MessageStore
from pyromq.store.results import PutError, StoreError

logger = logging.getLogger(__name__)

_LINE_SECONDS: Final = 60.0
#: How often a follower asks the NameServers for the leader, while it does not know where it is.
_LOOK_SECONDS: Final = 3.0
#: How long a follower keeps asking after a change: the new leader may register late.
_LOOK_AFTER_CHANGE: Final = 30.0
#: Delay before committed messages are dispatched again after a full disk stopped that.
_RETRY_SECONDS: Final = 1.0
#: How often a transfer is ordered before it has failed.
_TRANSFERS: Final = 3
#: How long a leader that stops waits for another one to take over.
_HAND_OVER_SECONDS: Final = 2.0


class BrokerRaft:
    """The membership of one broker in its group."""

    def __init__(
        self,
        store: MessageStore,
        settings: NodeSettings,
        role: BrokerPart,
        registration: Registration,
        tables: MetadataSync,
        *,
        store_host: bytes,
        on_stop: Callable[[str], None],
    ) -> None:
        """`on_stop` gets the reason if the node cannot continue."""
        assert store.agreement is not None
        self._store = store
        self._agreement = store.agreement
        log = store.agreement.entries
        assert isinstance(log, RaftLog)
        self._log = log
        self._role = role
        self._registration = registration
        self._tables = tables
        self._store_host = store_host
        self._on_stop = on_stop
        self._node = RaftNode(settings, log, self)
        self._broker_id = store.config.raft_broker_id
        self._agreement.refusal_of_group = self._refusal
        self._switch: RoleSwitch | None = None
        #: The term in which a quorum has everything that this leader's log had.
        self._ready_term = NONE
        self._changed = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._periodic = PeriodicTasks()
        self._retry: asyncio.TimerHandle | None = None
        self._look_until = 0.0

    @property
    def node(self) -> RaftNode:
        """Return the node."""
        return self._node

    # Life

    async def start(self, switch: RoleSwitch) -> None:
        """Join the group; `switch` changes the broker's role. Raises OSError or StoreError."""
        self._switch = switch
        self._advance()
        self._tables.start()
        self._worker = asyncio.create_task(self._follow_roles(), name="raft roles")
        self._periodic.start(_LINE_SECONDS, self._log_lag)
        self._periodic.start(_LOOK_SECONDS, self._look_for_leader)
        await self._node.start()

    async def stop(self) -> None:
        """Hand over if this node leads, and leave the group."""
        await self._periodic.stop()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            self._worker = None
            await self._hand_over()
        await self._tables.stop()
        await self._node.stop()
        self._agreement.step_down()
        if self._retry is not None:
            self._retry.cancel()

    async def cut_off(self) -> None:
        """Leave the group without a word, as a killed process would; `stop` ends the rest."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
        await self._node.stop()
        self._agreement.step_down()

    async def _hand_over(self) -> None:
        """Let the follower that has most of the log lead, if this node does."""
        if self._node.role is not Role.LEADER:
            return
        followers = [peer for peer in self._node.status().peers if peer.connected]
        if not followers:
            return
        best = max(followers, key=lambda peer: -1 if peer.watermark is None else peer.watermark)
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                code = await self._transfer(best.node_id)
        except TimeoutError:
            code = Code.UNKNOWN
        if code is not Code.SUCCESS:
            logger.warning("node %s did not take over: %s", best.node_id, code.name)

    # From the node

    def role_changed(self, role: Role, term: int, leader: str | None, reason: str) -> None:  # noqa: ARG002
        """Refuse sends at once if this node does not lead any more; change the role soon."""
        self._ready_term = NONE
        if self._agreement.is_leading:
            self._agreement.step_down()
        self._look_until = asyncio.get_running_loop().time() + _LOOK_AFTER_CHANGE
        self._changed.set()

    def leader_ready(self, term: int) -> None:
        """Become master as soon as everything is committed."""
        self._ready_term = term
        if self._log.committed_index < self._log.end_index:
            self._append_own_entry(term)
        self._changed.set()

    def committed(self, index: int) -> None:  # noqa: ARG002 - the log knows it
        """Make committed messages visible."""
        self._advance()
        if self._ready_term != NONE and not self._agreement.is_leading:
            self._changed.set()

    def committed_lost(self, index: int, committed: int) -> None:
        """Stop: consumers have seen messages that the group does not have."""
        self.failed(
            f"the leader removed entries {index + 1} to {committed}, which were committed: remove "
            f"{self._store.config.root} except for its config directory, and restart this broker "
            "to copy the group's log"
        )

    def failed(self, reason: str) -> None:
        """Stop the broker."""
        logger.critical("this node leaves its raft group: %s", reason)
        if self._agreement.is_leading:
            self._agreement.step_down()
        self._on_stop(reason)

    def _refusal(self) -> str | None:
        code = self._node.append_refusal()
        return None if code is None else f"[{code.name}]the raft group takes no messages now"

    def _advance(self) -> None:
        try:
            self._agreement.advance()
        except PutError as error:
            # The messages are in the log; their queues wait for room on the disk.
            if self._retry is None:
                logger.error("committed messages wait for room on the disk: %s", error)
                self._retry = asyncio.get_running_loop().call_later(
                    _RETRY_SECONDS, self._advance_again
                )
        except StoreError as error:
            self.failed(str(error))

    def _advance_again(self) -> None:
        self._retry = None
        self._advance()
        self._changed.set()

    def _append_own_entry(self, term: int) -> None:
        """Append an entry that nobody consumes, behind which old entries can be committed.

        Entries of earlier terms must not be committed by counting (docs/adr,
        2026-11-17-dledger-rules). Its record is a rolled-back transaction: neither queues nor the
        key index of any broker take notice of it.
        """
        record = self._own_record()
        (position,) = self._log.positions([len(record)])
        self._log.append_bodies(term, [with_physical_offset(record, position + ENTRY_HEADER_SIZE)])
        self._node.appended()

    def _own_record(self) -> bytes:
        now, flag = now_ms(), host_flag(self._store_host)
        record = MessageRecord(
            topic=RAFT_TOPIC,
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            body=b"",
            properties={},
            flag=0,
            sys_flag=TRANSACTION_ROLLBACK | flag,
            born_timestamp=now,
            born_host=("", 0),
            store_timestamp=now,
            store_host=("", 0),
            reconsume_times=0,
            prepared_transaction_offset=0,
            body_crc=0,
            size=0,
            message_id="",
        )
        return encode_record(record, bytes(HOST_SIZE_V4), self._store_host)

    # The role of the broker

    def _may_lead(self) -> bool:
        node, log = self._node, self._log
        return (
            node.role is Role.LEADER
            and self._ready_term == node.term
            and log.committed_index == log.end_index
            and self._agreement.committed == log.written
        )

    async def _follow_roles(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._settle()
            except (RoleError, OSError, ValueError) as error:
                logger.warning("the broker's role does not follow its node yet: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._changed.set()

    async def _settle(self) -> None:
        """Give the broker the role that its node has."""
        assert self._switch is not None
        if not self._role.is_replica and not self._agreement.is_leading:
            await self._switch.become_replica(self._broker_id)
        if self._role.is_replica and self._may_lead():
            await self._switch.become_master(BrokerRole.SYNC_MASTER)
        elif self._role.is_replica:
            self._registration.register_soon()

    async def become_master(self) -> None:
        """Accept messages from now on. Raises RoleError if the node does not lead any more."""
        await self._tables.stop()
        if not self._may_lead():
            raise RoleError("the node ceased to lead")
        self._agreement.lead(self._node.term, self._node.appended)

    async def become_replica(self) -> None:
        """Copy the tables of the next leader."""
        if self._agreement.is_leading:
            self._agreement.step_down()
        self._tables.start()

    # Orders and figures

    async def transfer(self, node_id: str) -> str | None:
        """Hand leadership to another node; return why it did not take over, or None."""
        if node_id not in self._store.config.raft_peers:
            return f"{node_id:.40} is not a node of the group"
        if self._node.role is not Role.LEADER:
            return f"this node does not lead; {self._node.leader or 'nobody'} does"
        code = await self._transfer(node_id)
        return None if code is Code.SUCCESS else f"node {node_id} answered {code.name}"

    async def _transfer(self, node_id: str) -> Code:
        """Order a transfer, again if a heartbeat made the transferee a follower meanwhile."""
        for _ in range(_TRANSFERS):
            code = await self._node.transfer(node_id)
            if code is not Code.TAKE_LEADERSHIP_FAILED or self._node.role is not Role.LEADER:
                break
        return code

    def is_following(self) -> bool:
        """Return whether this node follows a leader."""
        return self._node.role is Role.FOLLOWER and self._node.leader is not None

    async def copy_tables(self) -> list[str]:
        """Copy the leader's tables; return a message for each that could not be copied."""
        return await self._tables.sync_now()

    def figures(self) -> dict[str, Any]:
        """Return everything as JSON values, for GET_REPLICATION_STATUS."""
        status = self._node.status()
        return {
            "role": self._role.current.name,
            "brokerId": self._role.broker_id,
            "logStart": self._store.min_physical_offset,
            "logEnd": self._store.max_physical_offset,
            "replicated": self._store.max_physical_offset,
            "replicas": [],
            "following": None,
            "raft": {
                "group": status.group,
                "selfId": status.self_id,
                "address": status.address,
                "role": status.role.name,
                "term": status.term,
                "leader": status.leader,
                "beginIndex": status.begin_index,
                "endIndex": status.end_index,
                "committedIndex": status.committed_index,
                "flushedIndex": status.flushed_index,
                "beginPosition": status.begin_position,
                "endPosition": status.end_position,
                "committedPosition": status.committed_position,
                "flushedPosition": status.flushed_position,
                "reason": status.reason,
                "changedAt": int(status.changed_at * 1000),
                "peers": [_peer_figures(peer) for peer in status.peers],
            },
        }

    def _log_lag(self) -> None:
        status = self._node.status()
        if status.role is not Role.LEADER:
            logger.info(
                "node %s of group %s follows %s in term %d: entries up to %d, committed %d",
                status.self_id,
                status.group,
                status.leader or "nobody",
                status.term,
                status.end_index,
                status.committed_index,
            )
            return
        for peer in status.peers:
            logger.info(
                "node %s of group %s (%s): %s entries behind",
                peer.node_id,
                status.group,
                peer.kind if peer.connected else "not connected",
                "an unknown number of" if peer.lag is None else peer.lag,
            )

    def _look_for_leader(self) -> None:
        """Ask the NameServers for the leader's address while it may be unknown or another."""
        is_unknown = self._registration.master_address is None
        if self._role.is_replica and (
            is_unknown or asyncio.get_running_loop().time() < self._look_until
        ):
            self._registration.register_soon()


def _peer_figures(peer: PeerStatus) -> dict[str, Any]:
    return {
        "id": peer.node_id,
        "address": peer.address,
        "connected": peer.connected,
        "kind": peer.kind,
        "state": peer.state,
        "watermark": peer.watermark,
        "lag": peer.lag,
        "lastContact": peer.last_contact,
    }
