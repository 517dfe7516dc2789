"""Which queues a member of a consumer group takes: pure, the same answer on each member.

Every member sorts the same queues and the same member ids and takes its own
share, so members agree without speaking to each other. The shares are those
of RocketMQ's clients (`AllocateMessageQueueAveragely`): Java and Python
members of one group divide the queues without gap or overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyromq.protocol.bodies import MessageQueue


def allocate_averagely(
    queues: Sequence[MessageQueue], members: Sequence[str], member: str
) -> list[MessageQueue]:
    """The run of consecutive queues that belongs to `member`.

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
