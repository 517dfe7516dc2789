"""Which queues a member of a consumer group takes: pure, the same answer on each member.

Every member sorts the same queues and the same member ids and takes its own share, so
members agree without speaking to each other. The shares are those of RocketMQ's clients:
Java and Python members of one group divide the queues without gap or overlap, as long as
all of them use the same strategy.

A strategy is anything that can be called with the queues of one topic, the ids of all
members and the id of one of them, and gives that one's queues. Queues have their names as
servers know them (with a namespace, if there is one): some strategies depend on the name.
"""

from __future__ import annotations

import bisect
import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from pyromq.client.arguments import check_callable, check_count, check_queues, refusal
from pyromq.protocol.wire.bodies import MessageQueue

#: queues of a topic, ids of all members, id of one member -> the queues of that member
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Iterable[MessageQueue]]


def allocate_averagely(
    queues: Sequence[MessageQueue], members: Sequence[str], member: str
) -> list[MessageQueue]:
    """The run of consecutive queues that belongs to `member` (Java's default).

    Shares differ by one at most, the larger ones first. Someone who is not
    (yet) a member gets nothing.
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
    """Every n-th queue of n members: dealt out like cards, so a broker's queues are spread."""
    ordered_members = sorted(set(members))
    if member not in ordered_members:
        return []
    return sorted(queues)[ordered_members.index(member) :: len(ordered_members)]


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """Exactly these queues, whoever else is there; of each topic, those that it has."""

    queues: Collection[MessageQueue]

    def __post_init__(self) -> None:
        check_queues(self.queues)

    def __call__(
        self, _queues: Sequence[MessageQueue], _members: Sequence[str], _member: str
    ) -> list[MessageQueue]:
        """Those that were configured."""
        return sorted(self.queues)


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """Only queues of brokers in the given machine rooms: brokers are named `room@name`."""

    rooms: Collection[str]

    def __post_init__(self) -> None:
        # The letters of one name would be rooms of their own.
        if isinstance(self.rooms, str) or not isinstance(self.rooms, Collection):
            raise refusal("rooms", self.rooms, "a list of names is needed")

    def __call__(
        self, queues: Sequence[MessageQueue], members: Sequence[str], member: str
    ) -> list[MessageQueue]:
        """A run of the rooms' queues; what is left over goes to the first members."""
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
    """Members share the queues in their own room; those of rooms without members are for all.

    `room_of_queue` and `room_of_member` say what is where; `inner` divides within a room.
    """

    room_of_queue: Callable[[MessageQueue], str]
    room_of_member: Callable[[str], str]
    inner: Strategy = allocate_averagely

    def __call__(
        self, queues: Sequence[MessageQueue], members: Sequence[str], member: str
    ) -> list[MessageQueue]:
        """Own room first, then rooms without members by name."""
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
    """Members and queues on a ring of hashes: few queues move when a member comes or goes.

    Each member stands on the ring `virtual_nodes` times. `hash_of` is for groups whose Java
    members have their own hash function, too.
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
        """Queues whose next neighbour on the ring is `member`."""
        if member not in members:
            return []
        hash_of = self.hash_of or _md5_hash
        ring: dict[int, str] = {}
        for other in sorted(set(members)):
            # Of two members at one place the later one stays, as on Java's ring.
            ring.update((hash_of(f"{other}-{n}"), other) for n in range(self.virtual_nodes))
        places = sorted(ring)
        return [
            queue
            for queue in sorted(queues)
            if ring[places[bisect.bisect_left(places, hash_of(_java_text(queue))) % len(places)]]
            == member
        ]


def _room_in_name(queue: MessageQueue) -> str | None:
    parts = queue.broker_name.rstrip("@").split("@")  # Java's split drops empty ends
    return parts[0] if len(parts) == 2 else None


def _known(room: str, owner: MessageQueue | str) -> str:
    if not room:
        raise ValueError(f"the machine room of {owner} is not known: its function gave {room!r}")
    return room


def _md5_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )
