"""Allocation strategies: which queues each member of a consumer group takes.

Every member sorts the same queues and the same member ids and takes its own share, so members
agree without communication. The shares equal those of RocketMQ's clients: Java and Python members
of one group divide the queues without gap or overlap, as long as all use the same strategy.

A strategy is a callable that takes the queues of one topic, the ids of all members and the id of
one member, and returns that member's queues. Queues carry their names on the wire (including a
namespace), because some strategies depend on the name. Pure functions; `membership` calls them.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from pyromq.client.arguments import check_callable, check_count, check_queues, refusal
from pyromq.protocol.wire.bodies import MessageQueue

#: (queues of a topic, ids of all members, id of one member) -> queues of that member
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Iterable[MessageQueue]]


def allocate_averagely(
    queues: Sequence[MessageQueue], members: Sequence[str], member: str
) -> list[MessageQueue]:
    """Return consecutive queues for each member (the default, as in Java).

    Shares differ by at most one queue; the first members get the larger ones. A client that is
    not (yet) a member gets none.
    """
    ordered_members = sorted(set(members))
    if member not in ordered_members:
        return []
    ordered_queues = sorted(queues)
    index = ordered_members.index(member)
    share, larger_shares = divmod(len(ordered_queues), len(ordered_members))
    start = index * share + min(index, larger_shares)
    return ordered_queues[start : start + share + (index < larger_shares)]


def allocate_averagely_by_circle(
    queues: Sequence[MessageQueue], members: Sequence[str], member: str
) -> list[MessageQueue]:
    """Return every n-th queue for n members, which spreads each broker's queues over them."""
    ordered_members = sorted(set(members))
    if member not in ordered_members:
        return []
    return sorted(queues)[ordered_members.index(member) :: len(ordered_members)]


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """Allocates exactly the given queues, regardless of other members."""

    queues: Collection[MessageQueue]

    def __post_init__(self) -> None:
        check_queues(self.queues)

    def __call__(
        self, _queues: Sequence[MessageQueue], _members: Sequence[str], _member: str
    ) -> list[MessageQueue]:
        """Return the configured queues."""
        return sorted(self.queues)


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """Allocates only queues of brokers in the given machine rooms (broker names: `room@name`)."""

    rooms: Collection[str]

    def __post_init__(self) -> None:
        # A str would count as a collection of one-letter rooms.
        if isinstance(self.rooms, str) or not isinstance(self.rooms, Collection):
            raise refusal("rooms", self.rooms, "expected a list of names")

    def __call__(
        self, queues: Sequence[MessageQueue], members: Sequence[str], member: str
    ) -> list[MessageQueue]:
        """Return consecutive queues of the rooms; the first members share the remainder."""
        ordered_members = sorted(set(members))
        if member not in ordered_members:
            return []
        near = [queue for queue in sorted(queues) if _room_in_name(queue) in self.rooms]
        index = ordered_members.index(member)
        share, left_over = divmod(len(near), len(ordered_members))
        own = near[index * share : (index + 1) * share]
        if index < left_over:
            own.append(near[share * len(ordered_members) + index])
        return own


@dataclass(frozen=True, slots=True)
class AllocateMachineRoomNearby:
    """Allocates queues within each machine room; rooms without members are shared by all.

    `room_of_queue` and `room_of_member` return names of rooms; `inner` divides the queues of a
    room.
    """

    room_of_queue: Callable[[MessageQueue], str]
    room_of_member: Callable[[str], str]
    inner: Strategy = allocate_averagely

    def __call__(
        self, queues: Sequence[MessageQueue], members: Sequence[str], member: str
    ) -> list[MessageQueue]:
        """Return queues of the member's own room, then of rooms without members, by name."""
        if member not in members:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in sorted(queues):
            queues_by_room[_known(self.room_of_queue(queue), queue)].append(queue)
        members_by_room: dict[str, list[str]] = defaultdict(list)
        for other in sorted(set(members)):
            members_by_room[_known(self.room_of_member(other), other)].append(other)
        room = self.room_of_member(member)
        own: list[MessageQueue] = []
        near = queues_by_room.pop(room, None)
        if near:
            own += self.inner(near, members_by_room[room], member)
        for other_room in sorted(queues_by_room):
            if other_room not in members_by_room:
                own += self.inner(queues_by_room[other_room], members, member)
        return own


@dataclass(frozen=True, slots=True)
class AllocateConsistentHash:
    """Allocates by consistent hashing: few queues move when a member joins or leaves.

    Each member appears on the ring `virtual_nodes` times. Set `hash_of` if Java members of the
    group use a hash function of their own.
    """

    virtual_nodes: int = 10
    hash_of: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        check_count("virtual_nodes", self.virtual_nodes)
        if self.hash_of is not None:
            check_callable("hash_of", self.hash_of)

    def __call__(
        self, queues: Sequence[MessageQueue], members: Sequence[str], member: str
    ) -> list[MessageQueue]:
        """Return the queues whose next node on the ring belongs to `member`."""
        if member not in members:
            return []
        hash_of = self.hash_of or _md5_hash
        ring: dict[int, str] = {}
        for other in sorted(set(members)):
            # The later member wins a collision, as on Java's ring.
            ring.update((hash_of(f"{other}-{n}"), other) for n in range(self.virtual_nodes))
        nodes = sorted(ring)
        return [
            queue
            for queue in sorted(queues)
            if ring[nodes[bisect.bisect_left(nodes, hash_of(_java_text(queue))) % len(nodes)]]
            == member
        ]


def _room_in_name(queue: MessageQueue) -> str | None:
    parts = queue.broker_name.rstrip("@").split("@")  # Java's split drops empty ends
    return parts[0] if len(parts) == 2 else None


def _known(room: str, owner: MessageQueue | str) -> str:
    if not room:
        raise ValueError(f"machine room of {owner} is unknown: its function returned {room!r}")
    return room


def _md5_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )
