"""Plain pulls through the compiled kernel: from a chunk's bytes to whole responses.

`take` gives the chunk to `protocol.kernel.pulls`, which serves the plain pulls at its head: those
with a cached plan, whose messages are in memory. It stops at the first frame that is for the other
pull handlers: they serve everything, with or without the kernel, and their result is the same.

Invariant: the kernel knows a subset of the cached plans (`PullPlans`), and none that was checked
against older tables, older settings or another role of the broker.

Used by `handlers.pull` if the kernel is there. On the loop.
"""

from __future__ import annotations

import struct
from time import perf_counter
from types import ModuleType
from typing import Final

from pyromq.broker.handlers.pull_plans import PlanKey, PullPlan
from pyromq.broker.handlers.pull_serving import found_pieces, suggested_broker
from pyromq.broker.parts import BrokerParts
from pyromq.protocol.filter.tags import TagFilter
from pyromq.protocol.message.sysflag import PULL_COMMIT_OFFSET
from pyromq.protocol.wire.frame import Encoding
from pyromq.remoting.connection import MAX_UNSENT, Connection

#: Tags of a filter, which the kernel searches for each entry.
_MAX_TAGS: Final = 1024


class PlainPulls:
    """The kernel's view of a broker: plans, and the store."""

    def __init__(self, kernel: ModuleType, parts: BrokerParts) -> None:
        self._config = parts.config
        self._offsets = parts.tables.offsets
        self._topic_table = parts.tables.topics
        self._group_table = parts.tables.groups
        self._consumer_table = parts.tables.consumers
        self._stats = parts.stats
        self._turns = parts.long_poll.turns
        self._role = parts.role
        self._access_control = parts.access_control
        self._instruments = timing = parts.instruments
        self._sampler = None if timing is None else timing.pull_sampler
        store = parts.store.pull_parts
        self._reader = store.reader
        self._pulls = kernel.Pulls(
            tuple(found_pieces(Encoding.JSON)),
            tuple(found_pieces(Encoding.ROCKETMQ)),
            store.queues,
            store.log,
            store.watermarks,
            store.unsealed,
            store.reader.is_in_memory,
            self._commit,
            tuple(store.reader.pull_limits),
        )
        self._run = self._pulls.run
        self._note_versions()
        self._stats.before_count.append(self.count)

    def add(self, key: PlanKey, plan: PullPlan) -> None:
        """Serve pulls with this plan from now on, if they can be plain."""
        message_filter = plan.message_filter
        if plan.max_bytes > 0 or not (
            message_filter is None
            or (type(message_filter) is TagFilter and len(message_filter.codes) <= _MAX_TAGS)
        ):
            return
        fields = []
        for text in key:
            if text is not None and type(text) is not str:  # a number without quotes
                return
            fields.append(None if text is None else text.encode())
        codes = None
        if message_filter is not None:
            sorted_codes = sorted(message_filter.codes)
            codes = struct.pack(f">{len(sorted_codes)}q", *sorted_codes)
        max_count, max_examined = self._reader.counts(plan.max_count, message_filter)
        if not self._is_current():
            self.clear()  # now: later would drop this plan as well
        self._pulls.add(
            tuple(fields),
            plan,
            (plan.topic, plan.queue_id),
            max_count,
            max_examined,
            bool(plan.sys_flag & PULL_COMMIT_OFFSET) and not self._role.is_replica,
            suggested_broker(self._config, plan.group_config, is_slow=False),
            codes,
        )

    def clear(self) -> None:
        """Leave all pulls to the other handlers, until their plans are added again."""
        self._pulls.clear()
        self._note_versions()

    def take(
        self, connection: Connection, chunk: bytes, position: int, answers: list[bytes]
    ) -> int:
        """Serve the plain pulls at `position`; see `Service.take_frames`."""
        if self._turns.is_over:
            return position
        if not self._is_current():
            self.clear()
            return position
        if self._access_control is not None:
            signatures = self._access_control.signatures_for(connection)
            if signatures is not None:
                end = signatures.run(chunk, position)
                if not signatures.is_whole:
                    chunk = chunk[:end]
        # A client that pulls much at once must read the first responses before it gets others.
        room = MAX_UNSENT - sum(map(len, answers)) if answers else MAX_UNSENT
        before, begun = len(answers), perf_counter()
        taken: int = self._run(chunk, position, connection, answers, room)
        took = perf_counter() - begun
        if took >= 0.001:
            # The chunk's pulls share the time: usually one of them met pages that were not there.
            each = int(took * 1000 / max(1, len(answers) - before))
            self._stats.slowest_get = max(self._stats.slowest_get, each)
        sampler = self._sampler
        if sampler is not None:
            if sampler.skip:
                sampler.skip -= 1
            elif len(answers) > before:
                assert self._instruments is not None
                self._instruments.pulled(begun, answers[before:])
        return taken

    def count(self) -> None:
        """Add the pulls served since the last call to the statistics."""
        for plan, messages, size, pulls, next_offset in self._pulls.take_counts():
            self._stats.pulled(
                plan.group, plan.topic, plan.queue_id, messages, size, pulls, next_offset
            )

    def _commit(self, connection: Connection, plan: PullPlan, offset: int) -> None:
        self._offsets.commit(
            plan.group,
            plan.topic,
            plan.queue_id,
            offset,
            remote_address=connection.remote_address,
        )

    def _is_current(self) -> bool:
        """Return whether the tables are those that all known plans were checked against."""
        return (
            self._topics is self._topic_table.data_version
            and self._groups is self._group_table.data_version
            and self._consumers == self._consumer_table.version
        )

    def _note_versions(self) -> None:
        self._topics = self._topic_table.data_version
        self._groups = self._group_table.data_version
        self._consumers = self._consumer_table.version
