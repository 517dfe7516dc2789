"""Tells the members of consumer groups that their group has changed.

A member that hears NOTIFY_CONSUMER_IDS_CHANGED shares out the group's queues again at once
instead of at its next look. A thousand members that join or leave together would be a million
notices if every change were told by itself. So changes of one group within `ROUND_SECONDS`
share a notice, and the loop gets a turn after every few notices.

`changed` is called on the event loop; without a running one, members are told at once.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pyromq.broker.state.connections import ConsumerTable
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand
from pyromq.protocol.wire.headers import NotifyConsumerIdsChangedRequestHeader

#: The first change is told at once; changes within this time after it are told together.
ROUND_SECONDS: Final = 0.05
#: Notices that are sent before the loop gets a turn.
_NOTICES_AT_ONCE: Final = 256


class GroupNotices:
    """Sends the notices of all groups."""

    def __init__(self, consumers: ConsumerTable) -> None:
        self._consumers = consumers
        #: A dictionary for its order: groups are told in the order of their changes.
        self._changed: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def changed(self, group: str) -> None:
        """Tell the members of a group that its members or topics have changed, soon."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._tell(group)
            return
        self._changed[group] = None
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    async def stop(self) -> None:
        """Tell nobody any more."""
        self._changed.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while self._changed:
            groups, self._changed = self._changed, {}
            sent = 0
            for group in groups:
                # One group may have thousands of members: its notices are still one go.
                sent += self._tell(group)
                if sent >= _NOTICES_AT_ONCE:
                    sent = 0
                    await asyncio.sleep(0)
            await asyncio.sleep(ROUND_SECONDS)

    def _tell(self, group_name: str) -> int:
        """Send one group's notices; the number sent."""
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
