"""How far consumer groups are behind the end of the log, as of their last pull.

RocketMQ's GROUP_GET_FALL_SIZE (bytes of the log after the last message that a pull returned) and
GROUP_GET_FALL_TIME (age of that message, in milliseconds), by queue, topic and group. The key is
`queue@topic@group`. RocketMQ only logs them; here VIEW_BROKER_STATS_DATA returns them as well.

A pull costs nothing: the statistics hand over the pulls of the last second (`note`), and positions
become bytes and times when somebody asks. A group that stops pulling keeps its last values, so a
group that is offline does not look ever slower. `diskFallRecorded=false` records nothing.

Runs on the loop. `age` may read the disk: call the function it returns on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pyromq.base.clock import Clock
from pyromq.store.message_store import MessageStore

GROUP_GET_FALL_SIZE: Final = "GROUP_GET_FALL_SIZE"
GROUP_GET_FALL_TIME: Final = "GROUP_GET_FALL_TIME"

#: Keys examined between two yields to the loop.
_KEYS_PER_YIELD: Final = 1024

#: Group, topic and queue id.
PullKey = tuple[str, str, int]


class Fall(NamedTuple):
    """The distance of one group in one queue."""

    group: str
    topic: str
    queue_id: int
    size: int


class _LastPull(NamedTuple):
    #: The queue offset after the last message.
    next_offset: int
    #: The end of the log, and the time, when the pull was counted.
    log_end: int
    time: int


class FallBehind:
    """The last pull of each group in each queue."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._last: dict[PullKey, _LastPull] = {}

    def note(self, pulls: Mapping[PullKey, Sequence[int]]) -> None:
        """Take the pulls that the statistics counted; the last number is the next queue offset."""
        if not self._store.config.disk_fall_recorded:
            self._last.clear()
            return
        end, now = self._store.max_physical_offset, self._clock()
        for key, totals in pulls.items():
            if totals[-1] > 0:
                self._last[key] = _LastPull(totals[-1], end, now)

    def forget_group(self, group: str) -> None:
        """Forget the pulls of a group, so that only new ones count."""
        for key in [key for key in self._last if key[0] == group]:
            del self._last[key]

    def forget_deleted(self, is_group: Callable[[str], bool]) -> Iterator[None]:
        """Forget deleted groups and queues; yields where other work may run."""
        for number, (group, topic, queue_id) in enumerate(list(self._last), 1):
            if not is_group(group) or self._store.find_queue(topic, queue_id) is None:
                self._last.pop((group, topic, queue_id), None)
            if number % _KEYS_PER_YIELD == 0:
                yield

    def falls(self) -> Iterator[Fall]:
        """Yield the distance of every group in every queue; other work may run in between."""
        for key in list(self._last):
            size = self._size(key)
            if size is not None:
                yield Fall(*key, size)

    def view(self, name: str, key: str) -> Callable[[], int | None] | None:
        """Return a function that computes a statistic on any thread; None if it is not one."""
        if name not in (GROUP_GET_FALL_SIZE, GROUP_GET_FALL_TIME):
            return None
        queue, _, rest = key.partition("@")
        topic, _, group = rest.rpartition("@")
        if not queue.isascii() or not queue.isdecimal() or len(queue) > 10:
            return lambda: None
        pull_key = (group, topic, int(queue))
        if name == GROUP_GET_FALL_TIME:
            return self.age(pull_key)
        size = self._size(pull_key)
        return lambda: size

    def age(self, key: PullKey) -> Callable[[], int | None]:
        """Return a function that reads how old the last message was; for any thread."""
        last, place, store = self._last.get(key), self._place(key), self._store
        if last is None or place is None:
            return lambda: None

        def read() -> int | None:
            stored = store.store_time(place)
            return None if stored is None else max(0, last.time - stored)

        return read

    def _size(self, key: PullKey) -> int | None:
        place = self._place(key)
        return None if place is None else max(0, self._last[key].log_end - place)

    def _place(self, key: PullKey) -> int | None:
        """Return the physical offset of the last message, or where the log begins after it."""
        last = self._last.get(key)
        if last is None:
            return None
        queue = self._store.find_queue(key[1], key[2])
        if queue is None:  # the topic was deleted
            return None
        entry = queue.entry(last.next_offset - 1)
        return self._store.min_physical_offset if entry is None else entry.physical_offset
