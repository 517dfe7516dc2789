"""`SyncAdmin`: the admin API for programs without an event loop, from `Admin.sync(...)`.

    with Admin.sync("127.0.0.1:9876") as admin:
        print(admin.topics.names())

Its areas have the methods of the asynchronous ones (`sync_areas`); `client.sync` says what they
guarantee. `Admin` imports this module, so it must not import `Admin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyromq.admin.sync_areas import (
    SyncAccessControl,
    SyncClusters,
    SyncConfigurations,
    SyncConnections,
    SyncDeadLetters,
    SyncDelayed,
    SyncExports,
    SyncGroups,
    SyncHalfMessages,
    SyncMaintenance,
    SyncMessages,
    SyncOffsets,
    SyncRaft,
    SyncStatistics,
    SyncTopics,
)
from pyromq.client.sync import SyncClient


class SyncAdmin(SyncClient):
    """`Admin` for programs without an event loop, created by `Admin.sync(...)`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.access = SyncAccessControl(self._run)
        self.cluster = SyncClusters(self._run)
        self.configuration = SyncConfigurations(self._run)
        self.export = SyncExports(self._run)
        self.maintenance = SyncMaintenance(self._run)
        self.raft = SyncRaft(self._run)
        self.statistics = SyncStatistics(self._run)
        self.topics = SyncTopics(self._run)
        self.connections = SyncConnections(self._run)
        self.dead_letters = SyncDeadLetters(self._run)
        self.delayed = SyncDelayed(self._run)
        self.groups = SyncGroups(self._run)
        self.half_messages = SyncHalfMessages(self._run)
        self.messages = SyncMessages(self._run)
        self.offsets = SyncOffsets(self._run)
