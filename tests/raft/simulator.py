"""A deterministic simulator of a group: one seed, one run.

`Simulation(seed, mode)` draws a group of three or five nodes and a mix of faults from the seed:
lost, late, duplicated and reordered messages, partitions in one direction or both, crashes and
power cuts in the middle of a step, skewed clocks, expired entries, transfers of leadership. `run`
lets clients propose entries meanwhile, then heals everything and expects the group to agree.
`mixed=True` adds what our own nodes have beyond Java's: some of them take runs, callers write whole
chunks, requests fail, disks are full, a node may lose entries that were on disk, such that it
must catch up, and followers learn that their leader has ended, sometimes wrongly. It draws from a
second generator: a seed without it stays the same run.

Checked after each step: election safety, log matching, and, as far as the mode promises them,
leader completeness, state-machine safety and commit monotonicity; at the end liveness and equal
logs.

Requests and responses belong to a connection: they die with the process at either end.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

from pyromq.base.sizes import MIB
from pyromq.raft.core import Core
from pyromq.raft.member import (
    CaughtUp,
    Committed,
    CommittedLost,
    Effect,
    Persist,
    Persisted,
    Role,
    RoleChanged,
    Send,
    Settings,
)
from pyromq.raft.messages import NONE, Code, Entry, Envelope, Failed, Request, TransferRequest
from tests.raft.memory_ledger import MemoryLedger

GROUP = "g"
HEALED_MILLISECONDS = 180_000


class Mode(Enum):
    """Which crashes happen, and when an entry is acknowledged."""

    #: DLedger's: acknowledge before fsync; processes crash, the machine does not.
    CRASHES = "crashes"
    #: dLegerFlushBeforeAck: power cuts.
    POWER_CUTS_FLUSHED = "power cuts, flush before ack"
    #: DLedger's with power cuts: acknowledged entries may be lost.
    POWER_CUTS_UNFLUSHED = "power cuts, no flush before ack"


class ViolationError(AssertionError):
    """A property does not hold."""


@dataclass(slots=True)
class Node:
    """A node: its core while it runs, and what survives."""

    name: str
    settings: Settings
    clock_offset: int
    clock_rate: float
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    term: int = 0
    vote: str | None = None
    checkpoint: int = NONE
    core: Core | None = None
    incarnation: int = 0
    timer_at: int = -1
    committed: int = NONE
    #: Number of effects after which the process crashes.
    doom: int | None = None
    takes_runs: bool = False
    must_catch_up: bool = False

    def local(self, now: int) -> int:
        return int(now * self.clock_rate) + self.clock_offset

    def global_time(self, local: int) -> int:
        return int((local - self.clock_offset) / self.clock_rate) + 1


@dataclass(slots=True)
class Faults:
    """How bad the network and the machines are."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: int = 5
    slow: float = 0.0
    slow_delay: int = 100


class Simulation:
    """One run of a group."""

    def __init__(
        self,
        seed: int,
        mode: Mode = Mode.CRASHES,
        change: Callable[[Settings], Settings] | None = None,
        *,
        mixed: bool = False,
        ledgers: Callable[[Callable[[], bool]], MemoryLedger] = MemoryLedger,
        forgets_losses: bool = False,
    ) -> None:
        """`ledgers` makes a ledger, given whether its disk is full."""
        self.random = random.Random(seed)
        self.mode = mode
        #: The generator of a mixed group.
        self._mix = random.Random(f"mixed {seed}") if mixed else None
        self._disk_failures = 0.0
        self._forgets_losses = forgets_losses
        #: Losses of entries, and how many nodes have them again.
        self.losses = self.returns = 0
        self.now = 0
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._blocked: set[tuple[str, str]] = set()
        self.faults = Faults()
        self._is_healed = False
        self._proposals = 0
        #: The only leader of a term; the only entry, and the term before it, of an index and term.
        self.leaders: dict[int, str] = {}
        self._known: dict[tuple[int, int], tuple[Entry, int | None]] = {}
        #: Committed entries, and the term of the first node that committed each.
        self.chosen: dict[int, Entry] = {}
        self._chosen_in: dict[int, int] = {}
        size = self.random.choice((3, 3, 3, 5))
        names = tuple(f"n{each}" for each in range(size))
        preferred = (names[0],) if self.random.random() < 0.15 else ()
        batch = self.random.random() < 0.3
        self.nodes: dict[str, Node] = {}
        for name in names:
            settings = Settings(
                group=GROUP,
                self_id=name,
                peers=names,
                preferred_leaders=preferred,
                batch_push=batch,
                max_batch_bytes=200,
                max_pushes_in_flight=self.random.choice((2, 8, 1000)),
                flush_before_ack=mode is Mode.POWER_CUTS_FLUSHED,
            )
            self.nodes[name] = Node(
                name,
                change(settings) if change else settings,
                clock_offset=self.random.randrange(10_000),
                clock_rate=self.random.choice((1.0, 1.0, 0.95, 1.05)),
                ledger=ledgers(self._disk_is_full),
            )
            if self._mix:
                self._make_mixed(self.nodes[name], self._mix)

    def _make_mixed(self, node: Node, mix: random.Random) -> None:
        node.takes_runs = mix.random() < 0.7
        node.settings = replace(
            node.settings,
            max_run_bytes=mix.choice((100, 300, 100_000)),
            max_runs_in_flight=mix.choice((1, 2, 4)),
            max_bytes_in_flight=mix.choice((200, 1000, MIB)),
            max_waiting_bytes=mix.choice((20_000, MIB)),
        )

    def _disk_is_full(self) -> bool:
        if not self._mix or not self._disk_failures:
            return False
        return self._mix.random() < self._disk_failures

    @property
    def promises_commitment(self) -> bool:
        """Whether committed entries survive the faults of this mode."""
        return self.mode is not Mode.POWER_CUTS_UNFLUSHED

    # Scheduling.

    def run(self, milliseconds: int = 25_000) -> None:
        """Run with faults, then heal and expect agreement."""
        for node in self.nodes.values():
            self._start(node)
        self._draw_faults()
        self._after(self.random.randrange(3000), self._trouble)
        self._after(self.random.randrange(2000), self._client)
        self._until(milliseconds)
        self.heal()
        if not self._until(self.now + HEALED_MILLISECONDS, self._has_agreed):
            raise ViolationError(
                f"no agreement {HEALED_MILLISECONDS // 1000} s after healing: {self}"
            )

    def _until(self, end: int, condition: Callable[[], bool] | None = None) -> bool:
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
            self.steps += 1
            if condition and self.steps % 16 == 0 and condition():
                return True
        self.now = max(self.now, end)
        return condition is None

    def _after(self, delay: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay, self._sequence, action))

    # Faults.

    def _draw_faults(self) -> None:
        generator = self.random
        self.faults = Faults(
            drop=generator.choice((0, 0, 0.02, 0.2)),
            duplicate=generator.choice((0, 0, 0.1)),
            delay=generator.choice((2, 10, 40)),
            slow=generator.choice((0, 0.02, 0.2)),
            slow_delay=generator.choice((200, 1500, 6000)),
        )
        if self._mix:
            self._disk_failures = self._mix.choice((0, 0, 0.05, 0.5))

    def _trouble(self) -> None:
        """Do something bad, and come back."""
        if self._is_healed:
            return
        generator = self.random
        node = generator.choice(list(self.nodes.values()))
        leaders = [
            each for each in self.nodes.values() if each.core and each.core.role is Role.LEADER
        ]
        if leaders and generator.random() < 0.4:
            node = generator.choice(leaders)
        kind = generator.random()
        if kind < 0.45:
            if node.core and not node.doom:
                node.doom = generator.randrange(4)
                self._touch(node)
        elif kind < 0.7:
            self._partition(node.name)
        elif kind < 0.8:
            self._blocked.clear()
        elif kind < 0.87:
            self._draw_faults()
        elif kind < 0.93:
            self._transfer(node)
        else:
            node.ledger.expire_before(generator.randint(0, max(0, node.committed)))
        if self._mix and self._mix.random() < 0.1:
            self._end(node.name, self._mix.choice(list(self.nodes.values())))
        self._after(
            generator.choice((50, 800, 4000, 9000)) + generator.randrange(200), self._trouble
        )

    def _partition(self, name: str) -> None:
        others = [each for each in self.nodes if each != name]
        self.random.shuffle(others)
        inside = {name, *others[: self.random.randrange(len(self.nodes) // 2)]}
        is_one_way = self.random.random() < 0.3
        for each in inside:
            for other in set(self.nodes) - inside:
                self._blocked.add((each, other))
                if not is_one_way:
                    self._blocked.add((other, each))

    def _transfer(self, node: Node) -> None:
        if node.core and node.core.role is Role.LEADER:
            request = TransferRequest(
                group=GROUP,
                local_id="client",
                remote_id=node.name,
                leader_id=node.name,
                term=node.core.term,
                transfer_id=node.name,
                transferee_id=self.random.choice(
                    [each for each in self.nodes if each != node.name]
                ),
                take_leadership_ledger_index=NONE,
            )
            self._apply(
                node,
                node.core.step(Envelope("client", node.name, 1, request), node.local(self.now)),
            )

    def heal(self) -> None:
        """Stop all faults and start all nodes."""
        self._is_healed = True
        self.faults = Faults()
        self._disk_failures = 0.0
        self._blocked.clear()
        for node in self.nodes.values():
            node.doom = None
            if node.core is None:
                self._start(node)
        self._client()

    def _has_agreed(self) -> bool:
        nodes = list(self.nodes.values())
        if sum(node.core is not None and node.core.role is Role.LEADER for node in nodes) != 1:
            return False
        ends = {node.ledger.end_index for node in nodes} | {node.committed for node in nodes}
        if len(ends) != 1 or ends == {NONE} or self._proposals_after_heal == 0:
            return False
        last = {node.ledger.entry(node.ledger.end_index) for node in nodes}
        return len(last) == 1

    _proposals_after_heal = 0

    # Nodes.

    def _start(self, node: Node) -> None:
        node.incarnation += 1
        node.timer_at = -1
        node.committed = min(node.checkpoint, node.ledger.end_index)
        must_catch_up = node.must_catch_up and not self._forgets_losses
        persisted = Persisted(node.term, node.vote, node.committed, must_catch_up)
        generator = random.Random(self.random.getrandbits(32))
        node.core = Core(node.settings, persisted, node.ledger, generator, node.local(self.now))
        for peer in self.nodes.values():
            node.core.set_takes_runs(peer.name, takes=peer.takes_runs)
        self._schedule(node)

    def _crash(self, node: Node) -> None:
        assert node.core is not None
        saved = min(node.committed, node.core.durable_committed)
        node.checkpoint = self.random.choice((NONE, min(node.checkpoint, saved), saved))
        node.core = None
        node.doom = None
        if self.mode is not Mode.CRASHES:
            node.ledger.cut_power(self.random)
        if self._mix and self._mix.random() < 0.1:
            self._lose_entries(node, self._mix)
        if self._mix:
            for peer in self.nodes.values():
                self._after(self._mix.choice((1, 2, 50, 300)), partial(self._end, node.name, peer))
        incarnation = node.incarnation

        def restart() -> None:
            if node.core is None and node.incarnation == incarnation:
                self._start(node)

        self._after(self.random.choice((1, 100, 1000, 8000)), restart)

    def _end(self, leader: str, peer: Node) -> None:
        """Tell a peer that a node has ended; it may be back, or never have been the leader."""
        if peer.core:
            self._apply(peer, peer.core.leader_ended(leader, peer.local(self.now)))

    def _lose_entries(self, node: Node, mix: random.Random) -> None:
        """Damage the end of a log; the node notices. The other nodes remain a quorum."""
        lossy = {each.name for each in self.nodes.values() if each.must_catch_up} | {node.name}
        if len(lossy) <= len(self.nodes) - node.settings.quorum and node.ledger.end_index != NONE:
            node.ledger.lose_after(mix.randint(node.ledger.begin_index, node.ledger.end_index) - 1)
            node.must_catch_up = True
            self.losses += 1

    def _schedule(self, node: Node) -> None:
        assert node.core is not None
        at = max(self.now, node.global_time(node.core.deadline()))
        if node.timer_at < 0 or at < node.timer_at:
            node.timer_at = at
            incarnation = node.incarnation

            def fire() -> None:
                if node.core and node.incarnation == incarnation and node.timer_at == at:
                    node.timer_at = -1
                    if node.local(self.now) >= node.core.deadline():
                        self._touch(node)
                    else:
                        self._schedule(node)

            self._after(at - self.now, fire)

    def _touch(self, node: Node) -> None:
        if node.core:
            self._apply(node, node.core.tick(node.local(self.now)))

    def _apply(self, node: Node, effects: list[Effect]) -> None:
        """Apply effects in their order; a doomed node crashes before the last of them."""
        self._check_log(node)
        for effect in effects:
            if node.doom is not None:
                if node.doom == 0:
                    self._crash(node)
                    return
                node.doom -= 1
            self._apply_one(node, effect)
        if node.core:
            if node.ledger.durable_index != node.ledger.end_index:
                self._after(self.random.choice((1, 10, 10, 200)), lambda: self._flush(node))
            self._schedule(node)

    def _apply_one(self, node: Node, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._send(node, effect.envelope)
        elif isinstance(effect, Persist):
            self._persist(node, effect)
        elif isinstance(effect, RoleChanged):
            self._check_role(node, effect)
        elif isinstance(effect, Committed):
            self._check_commit(node, effect)
        elif isinstance(effect, CommittedLost):
            if self.promises_commitment:
                raise ViolationError(f"{node.name} lost committed entries: {effect}")
            node.committed = effect.index
        elif isinstance(effect, CaughtUp):
            node.must_catch_up = False
            self.returns += 1

    def _persist(self, node: Node, effect: Persist) -> None:
        if effect.term < node.term:
            raise ViolationError(f"{node.name} goes back from term {node.term}: {effect}")
        if effect.term == node.term and node.vote not in (None, effect.vote):
            raise ViolationError(f"{node.name} voted for {node.vote}: {effect}")
        node.term, node.vote = effect.term, effect.vote

    def _flush(self, node: Node) -> None:
        if node.core and node.ledger.durable_index != node.ledger.end_index:
            node.ledger.flush()
            self._apply(node, node.core.flushed(node.local(self.now)))

    # Network.

    def _send(self, node: Node, envelope: Envelope) -> None:
        target = self.nodes.get(envelope.recipient)
        if self._mix and isinstance(envelope.body, Request):
            self._fail_sometimes(node, envelope, self._mix)
        if target is None or (node.name, target.name) in self._blocked:
            return
        generator, faults = self.random, self.faults
        copies = 1
        if faults.drop and generator.random() < faults.drop:
            return
        if faults.duplicate and generator.random() < faults.duplicate:
            copies = 2
        for _ in range(copies):
            delay = 1 + generator.randrange(faults.delay)
            if faults.slow and generator.random() < faults.slow:
                delay += generator.randrange(faults.slow_delay)
            ends = (node.incarnation, target.incarnation)

            def deliver(ends: tuple[int, int] = ends) -> None:
                if target.core and (node.incarnation, target.incarnation) == ends:
                    self._apply(target, target.core.step(envelope, target.local(self.now)))

            self._after(delay, deliver)

    def _fail_sometimes(self, node: Node, envelope: Envelope, mix: random.Random) -> None:
        """Report a request as failed, whether it arrives or not; or connect the peer again."""
        incarnation, answer = node.incarnation, replace(envelope, body=Failed())
        peer = envelope.recipient

        def fail() -> None:
            if node.core and node.incarnation == incarnation:
                self._apply(node, node.core.step(answer, node.local(self.now)))

        def connect() -> None:
            if node.core and node.incarnation == incarnation:
                node.core.set_takes_runs(peer, takes=self.nodes[peer].takes_runs)
                self._schedule(node)

        is_cut = (node.name, peer) in self._blocked or self.nodes[peer].core is None
        if mix.random() < (0.5 if is_cut else 0.02):
            self._after(mix.choice((1, 100, 3000)), fail)
        elif mix.random() < 0.02 and node.core:
            node.core.set_takes_runs(peer, takes=False)
            self._after(mix.choice((1, 100, 3000)), connect)

    # Clients.

    def _client(self) -> None:
        leaders = [
            node for node in self.nodes.values() if node.core and node.core.role is Role.LEADER
        ]
        for node in leaders:
            assert node.core is not None
            self._proposals += 1
            body = b"%d" % self._proposals + bytes(self.random.randrange(40))
            if self._mix:
                result = self._write_chunk(node, body, self._mix)
            else:
                result, effects = node.core.propose(body, node.local(self.now))
                self._apply(node, effects)
            if self._is_healed and isinstance(result, Entry):
                self._proposals_after_heal += 1
        if not self._is_healed or self._proposals_after_heal < 3:
            self._after(self.random.choice((20, 300, 1500)), self._client)
        else:
            # A leader that was deposed meanwhile may have had them all.
            self._after(6000, lambda: None if self._has_agreed() else self._client())

    def _write_chunk(self, node: Node, body: bytes, mix: random.Random) -> Entry | Code | None:
        """Write entries, as far as the disk lets us, and let the core push them."""
        assert node.core is not None
        refusal = node.core.append_refusal()
        if refusal is not None:
            return refusal
        entry = None
        try:
            for number in range(mix.choice((1, 1, 3, 20))):
                entry = node.ledger.append_body(node.core.term, b"%s/%d" % (body, number))
        except OSError:
            pass
        if entry:
            self._apply(node, node.core.appended(node.local(self.now)))
        return entry

    # Properties.

    def _check_log(self, node: Node) -> None:
        """Log matching: an index and term has one entry, and one entry before it."""
        index = node.ledger.end_index
        while (entry := node.ledger.entry(index)) is not None:
            key = (index, entry.term)
            before = node.ledger.entry(index - 1)
            known = self._known.get(key)
            if known is None:
                self._known[key] = (entry, before.term if before else None)
            else:
                other, term_before = known
                if other != entry or (before and term_before not in (None, before.term)):
                    raise ViolationError(
                        f"{node.name} has {entry} after {before}, another node {known}"
                    )
                if term_before is not None or before is None:
                    return  # what precedes a known entry has been checked
                self._known[key] = (entry, before.term)
            index -= 1

    def _check_role(self, node: Node, change: RoleChanged) -> None:
        if change.role is not Role.LEADER:
            return
        if self.leaders.setdefault(change.term, node.name) != node.name:
            raise ViolationError(
                f"{node.name} and {self.leaders[change.term]} lead in term {change.term}"
            )
        if not self.promises_commitment:
            return
        for index, entry in self.chosen.items():
            is_due = self._chosen_in[index] < change.term and index >= node.ledger.begin_index
            if is_due and node.ledger.entry(index) != entry:
                raise ViolationError(
                    f"{node.name} leads in term {change.term} without {entry},"
                    f" committed in term {self._chosen_in[index]}"
                )

    def _check_commit(self, node: Node, effect: Committed) -> None:
        assert node.core is not None
        if effect.index <= node.committed:
            raise ViolationError(f"{node.name} commits {effect.index} after {node.committed}")
        first = max(node.committed + 1, node.ledger.begin_index)
        node.committed = effect.index
        if not self.promises_commitment:
            return
        for index in range(first, effect.index + 1):
            entry = node.ledger.entry(index)
            if entry is None:
                raise ViolationError(f"{node.name} commits {index}, which it does not have")
            if self.chosen.setdefault(index, entry) != entry:
                raise ViolationError(f"{node.name} commits {entry}, others {self.chosen[index]}")
            self._chosen_in.setdefault(index, node.core.term)

    def __str__(self) -> str:
        return "; ".join(
            f"{node.name} {node.core.role.value if node.core else 'down'} term {node.term}"
            f" log {node.ledger.begin_index}-{node.ledger.end_index} committed {node.committed}"
            for node in self.nodes.values()
        )


def simulate(
    seed: int, mode: Mode, *, mixed: bool = False, forgets_losses: bool = False, **changes: Any
) -> Simulation:
    """Run one seed; a failure names it."""
    simulation = Simulation(
        seed,
        mode,
        lambda settings: replace(settings, **changes),
        mixed=mixed,
        forgets_losses=forgets_losses,
    )
    try:
        simulation.run()
    except (ViolationError, AssertionError) as error:
        error.add_note(
            f"seed {seed}, {mode.name}: simulate({seed}, Mode.{mode.name}, mixed={mixed})"
        )
        raise
    return simulation
