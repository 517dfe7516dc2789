"""The synchronous twins of the areas, derived from the asynchronous classes.

`sync_areas.pyi` has their types for callers; `tools/generate_sync_admin.py` writes it. A method of
a twin runs the method of the same name on the background loop and waits for it. An asynchronous
iterator becomes a plain one. Any thread may call a twin.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from pyromq.admin.access import AccessControl
from pyromq.admin.cluster import Clusters
from pyromq.admin.configuration import Configurations
from pyromq.admin.export import Exports
from pyromq.admin.groups.connections import Connections
from pyromq.admin.groups.groups import Groups
from pyromq.admin.groups.offsets import Offsets
from pyromq.admin.maintenance import Maintenance
from pyromq.admin.messages.dead_letters import DeadLetters
from pyromq.admin.messages.delayed import Delayed
from pyromq.admin.messages.half_messages import HalfMessages
from pyromq.admin.messages.messages import Messages
from pyromq.admin.raft import Raft
from pyromq.admin.session import Area
from pyromq.admin.statistics import Statistics
from pyromq.admin.topics import Topics

#: Runs a coroutine that needs the admin on the background loop, and returns its result.
Runner = Callable[[Callable[[Any], Coroutine[Any, Any, Any]]], Any]


def twin(area: type[Area], attribute: str) -> type[Any]:
    """Return the synchronous class of an area, which is `attribute` of `Admin`."""
    methods: dict[str, Any] = {"__init__": _init, "__doc__": area.__doc__}
    for name, method in inspect.getmembers(area, inspect.isfunction):
        if name.startswith("_"):
            continue
        if inspect.isasyncgenfunction(method):
            methods[name] = _iterating(method, attribute)
        else:
            methods[name] = _waiting(method, attribute)
    return type(f"Sync{area.__name__}", (), methods)


def _init(self: Any, run: Runner) -> None:
    self._run = run


def _waiting(method: Any, attribute: str) -> Any:
    @functools.wraps(method)
    def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        return self._run(lambda admin: method(getattr(admin, attribute), *arguments, **options))

    return wait


def _iterating(method: Any, attribute: str) -> Any:
    @functools.wraps(method)
    def iterate(self: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        items: AsyncIterator[Any] | None = None

        async def step(admin: Any) -> list[Any]:
            nonlocal items
            if items is None:
                items = method(getattr(admin, attribute), *arguments, **options)
            try:
                return [await anext(items)]
            except StopAsyncIteration:
                return []

        async def end(_: Any) -> None:
            if items is not None:
                await items.aclose()  # type: ignore[attr-defined]

        try:
            while found := self._run(step):
                yield found[0]
        finally:
            self._run(end)

    return iterate


SyncAccessControl = twin(AccessControl, "access")
SyncClusters = twin(Clusters, "cluster")
SyncConfigurations = twin(Configurations, "configuration")
SyncExports = twin(Exports, "export")
SyncMaintenance = twin(Maintenance, "maintenance")
SyncRaft = twin(Raft, "raft")
SyncStatistics = twin(Statistics, "statistics")
SyncTopics = twin(Topics, "topics")
SyncConnections = twin(Connections, "connections")
SyncDeadLetters = twin(DeadLetters, "dead_letters")
SyncDelayed = twin(Delayed, "delayed")
SyncGroups = twin(Groups, "groups")
SyncHalfMessages = twin(HalfMessages, "half_messages")
SyncMessages = twin(Messages, "messages")
SyncOffsets = twin(Offsets, "offsets")
