"""One node of a raft group: joins the core, the log, the vote file and the network on one loop.

The owner starts and stops the log, writes entries to it while this node leads
(`append_refusal`, `RaftLog.append_bodies`, then `appended`), and learns everything else through
its `NodeListener`.

Events come from the port (`network.server`), from the connections to peers (`network.peers`), from
the clock and from the owner. Each is a step of the core; the effects of a step are applied in their
order, before the next step:

- `Persist` is an fsync on the loop, so nothing that depends on a vote leaves before it is durable.
  It happens in elections only.
- Requests are queued for their peer, and leave at the end of the chunk that caused them.
- Answers leave with the others of their chunk; late ones at once.
- Several commits of a chunk are one for the listener.

Invariants
1. The core is entered by one event at a time: what an effect causes comes as a later event.
2. After a failure (`NodeListener.failed`) nothing is sent and nothing is written any more.
3. A request that the core never answers is forgotten after `_MAX_WAIT` ms.

Runs on the loop; the flush thread is its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from pyromq.raft.core import Core
from pyromq.raft.flush import FlushService
from pyromq.raft.format import Vote
from pyromq.raft.log import RaftLog
from pyromq.raft.log_ledger import LogLedger
from pyromq.raft.member import (
    CaughtUp,
    Committed,
    CommittedLost,
    Effect,
    LeaderReady,
    LedgerFailed,
    LedgerWorks,
    Persist,
    Persisted,
    Role,
    RoleChanged,
    Send,
)
from pyromq.raft.messages import (
    NONE,
    Code,
    Entry,
    Envelope,
    Failed,
    PushRequest,
    PushResponse,
    Request,
    Response,
    TransferRequest,
)
from pyromq.raft.network.lookout import may_ask_for_votes
from pyromq.raft.network.peers import Peer
from pyromq.raft.network.server import RaftServer, Reply
from pyromq.raft.node.settings import NodeSettings
from pyromq.raft.node.status import RaftStatus, status_of
from pyromq.raft.vote_file import VoteFile
from pyromq.remoting.limits import PeerLimits
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)

#: How long an answer may take; its sender has given up before.
_MAX_WAIT: Final = 5000
#: A timer that is later than this lets the sockets be read first: the heartbeat that it misses may
#: be there.
_MAX_LATENESS: Final = 0.05
_READ_SECONDS: Final = 0.001
_NEVER: Final = 1 << 62
#: Milliseconds for which the deadline is not computed again while only pushes come: they cause none
#: that is nearer.
_CALM_PERIOD: Final = 100


class NodeListener(Protocol):
    """Learns what happens to a node; called on the loop, in order.

    It may call `append_refusal`, `appended` and the properties of the node.
    """

    def role_changed(self, role: Role, term: int, leader: str | None, reason: str) -> None:
        """Take note of a new role, term or leader."""

    def leader_ready(self, term: int) -> None:
        """Take note that a quorum holds everything that this leader's log had."""

    def committed(self, index: int) -> None:
        """Take note that entries up to `index` are committed; the log knows it already."""

    def committed_lost(self, index: int, committed: int) -> None:
        """Rebuild what came from entries behind `index`: a leader removed them."""

    def failed(self, reason: str) -> None:
        """Stop the broker: the log cannot be trusted any more, or an fsync failed."""


class NodeState(Enum):
    """The life of a node."""

    NEW = "new"
    RUNNING = "running"
    #: Nothing is sent or written any more.
    FAILED = "failed"
    STOPPED = "stopped"


class RaftNode:
    """A member of a group."""

    #: Set by `start`.
    _core: Core
    _loop: asyncio.AbstractEventLoop
    _server: RaftServer

    def __init__(
        self,
        settings: NodeSettings,
        log: RaftLog,
        listener: NodeListener,
        *,
        generator: random.Random | None = None,
    ) -> None:
        if settings.self_id not in settings.peers:
            raise ValueError(f"node {settings.self_id} is not in the list of peers")
        self._settings = settings
        self._log = log
        self._listener = listener
        self._generator = generator or random.Random()  # noqa: S311 - spreads elections
        self._votes = VoteFile(settings.directory)
        self._flush = FlushService(
            log, on_flushed=self._on_flushed, on_failure=self._on_flush_failure
        )
        self._state = NodeState.NEW
        self._host, self._port = settings.peers[settings.self_id]
        self._peers: dict[str, Peer] = {}
        #: Requests of others that the core has not answered yet, by the id that the core knows.
        self._replies: dict[int, Reply] = {}
        #: Callers of `transfer`, by the same ids.
        self._orders: dict[int, asyncio.Future[Code]] = {}
        self._last_id = 0
        #: The commit index that the listener does not know yet.
        self._commit = -1
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = _NEVER
        #: Only pushes and their answers came since the deadline was computed.
        self._is_calm = False
        self._is_pump_due = False
        #: Looks whether the leader has ended.
        self._look: asyncio.Task[None] | None = None
        self._reason = "not started"
        self._changed_at = time.time()

    # Life

    async def start(self) -> None:
        """Listen, load the vote, and take part in elections. The log has been started.

        Raises OSError if the port is not available, StoreError if the vote cannot be trusted.
        """
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        vote = self._votes.load()
        persisted = Persisted(
            vote.term, vote.voted_for, self._log.committed_index, self._log.must_catch_up
        )
        self._core = Core(
            settings.core_settings(),
            persisted,
            LogLedger(self._log),
            self._generator,
            self._now(),
        )
        client = None if settings.tls is None else settings.tls.replication_client
        self._peers = {
            peer: Peer(settings.group, settings.self_id, peer, address, self, client)
            for peer, address in settings.peers.items()
            if peer != settings.self_id
        }
        self._server = RaftServer(
            settings.group,
            settings.self_id,
            settings.peers,
            self,
            settings.tls,
            PeerLimits(allowed=("dLegerAllowedPeers", settings.allowed_peers)),
        )
        self._port = await self._server.start(settings.listen_host, self._port)
        self._flush.start()
        self._enter(NodeState.RUNNING)
        logger.info(
            "node %s of group %s started at %s:%d: term %d, entries %d to %d, committed %d",
            settings.self_id,
            settings.group,
            self._host,
            self._port,
            self.term,
            self._log.begin_index,
            self._log.end_index,
            self._log.committed_index,
        )
        self._arm()

    async def stop(self) -> None:
        """Leave the group: close all connections. The log stays open."""
        if self._state in (NodeState.NEW, NodeState.STOPPED):
            return
        self._enter(NodeState.STOPPED)
        if self._timer is not None:
            self._timer.cancel()
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
        await self._server.stop()
        await asyncio.gather(*(peer.stop() for peer in self._peers.values()))
        await asyncio.to_thread(self._flush.stop)
        self._replies.clear()
        for order in self._orders.values():
            if not order.done():
                order.set_result(Code.UNKNOWN)

    def _enter(self, state: NodeState) -> None:
        assert self._state is not NodeState.STOPPED, state
        self._state = state

    # For the owner

    @property
    def role(self) -> Role:
        """Return the role; that of a candidate before the start."""
        return Role.CANDIDATE if self._state is NodeState.NEW else self._core.role

    @property
    def term(self) -> int:
        """Return the current term; -1 before the start."""
        return NONE if self._state is NodeState.NEW else self._core.term

    @property
    def leader(self) -> str | None:
        """Return the leader of the current term, if it is known."""
        return None if self._state is NodeState.NEW else self._core.leader

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that this node listens on."""
        return self._host, self._port

    def append_refusal(self) -> Code | None:
        """Return why no entry may be written to the log now, or None if this node leads."""
        if self._state is not NodeState.RUNNING:
            return Code.INTERNAL_ERROR
        return self._core.append_refusal()

    def appended(self) -> None:
        """Push the entries of the current term that the owner wrote to the log.

        Several calls in one iteration of the loop are one push.
        """
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    async def transfer(self, node_id: str) -> Code:
        """Hand leadership to another node; return the outcome."""
        if self._state is not NodeState.RUNNING:
            return Code.INTERNAL_ERROR
        settings = self._settings
        request = TransferRequest(
            group=settings.group,
            local_id=settings.self_id,
            remote_id=settings.self_id,
            leader_id=settings.self_id,
            term=self.term,
            transfer_id=settings.self_id,
            transferee_id=node_id,
            take_leadership_ledger_index=-1,
        )
        self._last_id += 1
        request_id = self._last_id
        order: asyncio.Future[Code] = self._loop.create_future()
        self._orders[request_id] = order
        try:
            self._is_calm = False
            envelope = Envelope(settings.self_id, settings.self_id, request_id, request)
            self._advance(self._core.step, envelope)
            self.chunk_ended()
            return await order
        finally:
            del self._orders[request_id]

    def status(self) -> RaftStatus:
        """Return the state of this node and, as leader, of its followers."""
        is_new = self._state is NodeState.NEW
        return status_of(
            self._settings,
            f"{self._host}:{self._port}",
            None if is_new else self._core,
            self._log,
            self._peers.values(),
            last_change=(self._reason, self._changed_at),
            now=0.0 if is_new else self._loop.time(),
        )

    # Events

    def requested(self, request: Request, reply: Reply) -> None:
        """Handle a request of another node; called by the server."""
        if self._state is not NodeState.RUNNING:
            return
        reply.since = self._now()
        self._last_id += 1
        request_id, sender = self._last_id, request.local_id
        self._replies[request_id] = reply
        if not isinstance(request, PushRequest):
            self._is_calm = False
        envelope = Envelope(sender, self._settings.self_id, request_id, request)
        self._advance(self._core.step, envelope)

    def chunk_ended(self) -> None:
        """Tell the listener of commits, let requests leave, wait for the next deadline."""
        if self._state is not NodeState.RUNNING:
            return
        self._tell_commit()
        for peer in self._peers.values():
            peer.flush()
        if self._settings.flush_before_ack and self._log.flushed < self._log.written:
            self._flush.wake()
        if not self._is_calm or self._armed_for - self._now() > _CALM_PERIOD:
            self._arm()

    def committed_entry(self, index: int) -> Entry | None:
        """Return a committed entry, or None; called by the server."""
        if index > self._log.committed_index:
            return None
        try:
            found = self._log.entry(index)
        except IndexError:
            return None
        return Entry(index, found.term, found.position, found.size, bytes(found.body))

    def answered(self, peer: str, answers: list[tuple[int, Response | Failed]]) -> None:
        """Handle the ends of requests; called by a peer's connection."""
        self_id = self._settings.self_id
        for request_id, answer in answers:
            if self._state is not NodeState.RUNNING:
                return
            if not isinstance(answer, PushResponse):
                self._is_calm = False
            self._advance(self._core.step, Envelope(peer, self_id, request_id, answer))
        self.chunk_ended()

    def takes_runs(self, peer: str, *, is_able: bool) -> None:
        """Take note whether pushes to a peer may carry a run; called by its connection."""
        self._core.set_takes_runs(peer, takes=is_able)

    def sender_left(self, peer: str) -> None:
        """Look whether the leader has ended if its connection did; called by the server."""
        is_leader = peer == self.leader != self._settings.self_id
        if self._state is NodeState.RUNNING and is_leader and self._look is None:
            self._look = self._loop.create_task(self._look_at_leader(peer))

    async def _look_at_leader(self, leader: str) -> None:
        settings = self._settings
        others = {
            peer: address for peer, address in settings.peers.items() if peer != settings.self_id
        }
        try:
            is_free = await may_ask_for_votes(settings.group, leader, others)
        finally:
            self._look = None
        if is_free and self._state is NodeState.RUNNING:
            self._is_calm = False
            self._advance(self._core.leader_ended, leader)
            self.chunk_ended()

    def _pump(self) -> None:
        self._is_pump_due = False
        if self._state is not NodeState.RUNNING:
            return
        # An event since the append may have ended the term.
        if self.role is Role.LEADER and self._log.end_term == self.term:
            self._advance(self._core.appended)
        self.chunk_ended()

    def _tick(self) -> None:
        due = self._armed_for / 1000
        if self._loop.time() - due > _MAX_LATENESS:
            self._armed_for = -1  # nothing is earlier than the call below
            self._timer = self._loop.call_later(_READ_SECONDS, self._tick_late)
        else:
            self._tick_late()

    def _tick_late(self) -> None:
        self._timer, self._armed_for = None, _NEVER
        self._is_calm = False
        if self._state is not NodeState.RUNNING:
            return
        now = self._now()
        if now >= self._core.deadline():
            self._advance(self._core.tick)
        self._forget_replies(now)
        self.chunk_ended()

    def _forget_replies(self, now: int) -> None:
        while self._replies:
            request_id, oldest = next(iter(self._replies.items()))
            if oldest.since > now - _MAX_WAIT:
                return
            del self._replies[request_id]

    def _arm(self) -> None:
        """Let the clock call at the core's deadline, unless it calls earlier anyway."""
        deadline = self._core.deadline()
        if self._is_calm:
            deadline = min(deadline, self._now() + _CALM_PERIOD)
        self._is_calm = True
        if deadline < self._armed_for:
            if self._timer is not None:
                self._timer.cancel()
            self._armed_for = deadline
            # Loops may call a little early.
            self._timer = self._loop.call_at((deadline + 0.5) / 1000, self._tick)

    def _on_flushed(self) -> None:
        """Tell the core, if it waits; called by the flush thread."""
        if self._settings.flush_before_ack:
            self._call(self._flushed)

    def _flushed(self) -> None:
        if self._state is NodeState.RUNNING:
            self._advance(self._core.flushed)
            self.chunk_ended()

    def _on_flush_failure(self, reason: str) -> None:
        self._call(lambda: self._fail(reason))

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed
            logger.debug("the loop is closed: %s is not called", function)

    def _now(self) -> int:
        return int(self._loop.time() * 1000)

    # Effects

    def _advance(self, step: Callable[..., list[Effect]], *arguments: object) -> None:
        """Take a step of the core and apply its effects."""
        try:
            self._run(step(*arguments, self._now()))
        except (OSError, StoreError) as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("a step of node %s failed", self._settings.self_id)
            self._fail(f"internal error: {type(error).__name__}: {error}")

    def _run(self, effects: list[Effect]) -> None:
        """Apply effects in their order."""
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.envelope)
            elif isinstance(effect, Committed):
                # Before the next step: the log refuses to remove what is committed.
                if self._log.commit(effect.index):
                    self._commit = effect.index
            else:
                self._is_calm = False
                self._tell_commit()
                self._run_rare(effect)
            if self._state is not NodeState.RUNNING:
                return

    def _send(self, envelope: Envelope) -> None:
        body, request_id = envelope.body, envelope.request_id
        if isinstance(body, Request):
            self._peers[envelope.recipient].send(request_id, body)
        elif reply := self._replies.pop(request_id, None):
            assert isinstance(body, Response)
            reply.send(body)
        elif (order := self._orders.get(request_id)) and not order.done():
            assert isinstance(body, Response)
            order.set_result(body.code)

    def _run_rare(self, effect: Effect) -> None:
        if isinstance(effect, Persist):
            try:
                self._votes.save(Vote(effect.term, effect.vote))
            except OSError as error:
                self._fail(f"cannot save the vote in {self._settings.directory}: {error}")
        elif isinstance(effect, RoleChanged):
            self._log_role(effect)
            self._listener.role_changed(effect.role, effect.term, effect.leader, effect.reason)
        elif isinstance(effect, LeaderReady):
            self._listener.leader_ready(effect.term)
        elif isinstance(effect, CommittedLost):
            self._listener.committed_lost(effect.index, effect.committed)
        elif isinstance(effect, CaughtUp):
            logger.info("node %s has caught up, and votes again", self._settings.self_id)
            self._log.caught_up()
        elif isinstance(effect, LedgerFailed):
            logger.error("node %s cannot write its log: %s", self._settings.self_id, effect.error)
        elif isinstance(effect, LedgerWorks):
            logger.info("node %s can write its log again", self._settings.self_id)

    def _log_role(self, change: RoleChanged) -> None:
        self._reason, self._changed_at = change.reason, time.time()
        logger.info(
            "node %s of group %s is %s of term %d, leader %s: %s",
            self._settings.self_id,
            self._settings.group,
            change.role.value,
            change.term,
            change.leader or "unknown",
            change.reason,
        )

    def _tell_commit(self) -> None:
        index, self._commit = self._commit, -1
        if index >= 0:
            self._listener.committed(index)

    def _fail(self, reason: str) -> None:
        """Stop sending and writing: what this node would say could be wrong."""
        if self._state is not NodeState.RUNNING:
            return
        self._enter(NodeState.FAILED)
        logger.critical("node %s cannot continue: %s", self._settings.self_id, reason)
        self._listener.failed(reason)
