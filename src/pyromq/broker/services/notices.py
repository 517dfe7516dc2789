"""Notifies the members of consumer groups that their group has changed.

On NOTIFY_CONSUMER_IDS_CHANGED a member rebalances immediately instead of at its next interval.
A thousand members that join or leave together would cause a million notices if each change were
announced by itself. So changes of a group within `ROUND_SECONDS` share one notice, and the loop
serves other work after every few notices.

`changed` is called on the loop; without a running loop members are notified immediately.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pyromq.broker.state.connections import ConsumerTable
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand
from pyromq.protocol.wire.headers import NotifyConsumerIdsChangedRequestHeader

#: The first change is announced immediately; changes within this time after it share a notice.
ROUND_SECONDS: Final = 0.05
#: Notices between two yields to the loop.
_NOTICES_PER_YIELD: Final = 256


class GroupNotices:
    """Sends the notices of all groups."""

    def __init__(self, consumers: ConsumerTable) -> None:
        self._consumers = consumers
        #: A dictionary keeps the order of the changes.
        self._changed: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def changed(self, group: str) -> None:
        """Notify the members of a group soon that its members or topics have changed."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._notify(group)
            return
        self._changed[group] = None
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    async def stop(self) -> None:
        """Stop sending notices."""
        self._changed.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while self._changed:
            groups, self._changed = self._changed, {}
            sent = 0
            for group in groups:
                # The notices of one group are not interrupted, even for thousands of members.
                sent += self._notify(group)
                if sent >= _NOTICES_PER_YIELD:
                    sent = 0
                    await asyncio.sleep(0)
            await asyncio.sleep(ROUND_SECONDS)

    def _notify(self, group_name: str) -> int:
        """Send the notices of one group; return their cost in notices."""
        group = self._consumers.find(group_name)
        if group is None:
            return 1
        notice = RemotingCommand(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            ext_fields=NotifyConsumerIdsChangedRequestHeader(group_name).encode(),
            flag=FLAG_ONEWAY,
        )
        for connection in list(group.members):
            if not connection.closed:
                connection.send(notice)
        return 1 + len(group.members)
