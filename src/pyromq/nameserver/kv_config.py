"""The key-value configuration that a NameServer stores for administrators.

A table of strings per namespace. The namespace `ORDER_TOPIC_CONFIG` fixes the number of queues per
broker for ordered topics. Every change is saved to one JSON file in RocketMQ's form:
`{"configTable":{"namespace":{"key":"value"}}}`.

Invariants:
1. `_size` is the size of the table as JSON, without its outer brackets. A put that would exceed the
   limit is refused. A file above the limit still loads; then only puts are refused.
2. A namespace is encoded at most once per change, and never above the requested size.

Called by `handlers` on the loop. A worker thread encodes and writes files, one at a time and always
the newest content. Changes that arrive during a write share the next one, so a slow disk delays
only the responses to changes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.base.atomic_file import backup_of, read_file, write_file
from pyromq.protocol.java.fastjson import BodyError, dump_json
from pyromq.protocol.java.wire_types import shorten
from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.body_codec import Body

logger = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KVConfigFileError(Exception):
    """Neither the file nor its backup can be read."""


class KVLimitError(Exception):
    """A change exceeds a limit, which the message names."""


@dataclass(frozen=True, slots=True)
class KVLimits:
    """Maximum sizes of names, values and the whole table, in bytes as JSON."""

    name: int = sys.maxsize
    value: int = sys.maxsize
    table: int = sys.maxsize


@dataclass(slots=True)
class KVConfigSerializeWrapper(Body):
    """The content of the file."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KVConfig:
    """All namespaces, and their file."""

    def __init__(self, path: Path, limits: KVLimits | None = None) -> None:
        self._path = path
        self._limits = limits or KVLimits()
        self._table: dict[str, dict[str, str]] = {}
        self._size = 0
        self._encoded: dict[str, bytes] = {}  # cache of the last namespace
        self._saving = asyncio.Lock()
        self._next_save: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read the file, or its backup. Raises `KVConfigFileError` if both are damaged."""
        failures = []
        for path in (self._path, backup_of(self._path)):
            try:
                content = read_file(path)
                if content is None:
                    continue
                self._table = KVConfigSerializeWrapper.decode(content).config_table
            except (OSError, BodyError) as error:
                failures.append(f"{path}: {error}")
                continue
            if failures:
                logger.warning("KV configuration loaded from the backup: %s", failures[0])
            self._measure()
            return
        if failures:
            raise KVConfigFileError(
                f"cannot read the KV configuration ({'; '.join(failures)}); "
                "repair the file or move it away"
            )

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all keys of a namespace, or None if it does not exist."""
        return self._table.get(namespace)

    def encoded(self, namespace: str, max_size: int) -> bytes | None:
        """Encode a namespace as a `KVTable`, leaving out keys that do not fit.

        Returns None if the namespace does not exist.
        """
        table = self._table.get(namespace)
        if table is None:
            return None
        body = self._encoded.get(namespace)
        if body is None or len(body) > max_size:
            body = KVTable(_fitting(namespace, table, max_size)).encode()
            self._encoded = {namespace: body}
        return body

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key and save.

        Raises `KVLimitError` if it is too large, `OSError` if it is set but could not be saved.
        """
        self._make_room(namespace, key, value)
        self._size += _added_size(self._table, namespace, key, value)
        self._table.setdefault(namespace, {})[key] = value
        self._encoded.clear()
        logger.info("KV configuration: %s/%s set", shorten(namespace), shorten(key))
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a key and save. Raises `OSError` if it is deleted but could not be saved."""
        value = self._table.get(namespace, {}).pop(key, None)
        if value is not None:
            self._size -= _entry_size(key, value)
            self._encoded.clear()
        logger.info("KV configuration: %s/%s deleted", shorten(namespace), shorten(key))
        await self._save()

    async def close(self) -> None:
        """Wait until every change is saved or has failed to be."""
        if self._next_save is not None:
            await asyncio.wait([self._next_save])
        async with self._saving:
            pass

    def _measure(self) -> None:
        self._size = sum(
            _namespace_size(namespace) + sum(_entry_size(*item) for item in table.items())
            for namespace, table in self._table.items()
        )
        if self._size > self._limits.table:
            logger.warning(
                "%s has %d bytes, limit %d (maxKvConfigSize): only deletions are accepted",
                self._path,
                self._size,
                self._limits.table,
            )

    def _make_room(self, namespace: str, key: str, value: str) -> None:
        for kind, text, limit, setting in (
            ("namespace", namespace, self._limits.name, "maxKvNameSize"),
            ("key", key, self._limits.name, "maxKvNameSize"),
            ("value", value, self._limits.value, "maxKvValueSize"),
        ):
            size = len(dump_json(text))
            if size > limit:
                raise KVLimitError(
                    f"{kind} {shorten(text)} has {size} bytes, limit {limit} ({setting})"
                )
        added = _added_size(self._table, namespace, key, value)
        if added > 0 and self._size + added > self._limits.table:
            self._forget_empty_namespaces()
            added = _added_size(self._table, namespace, key, value)
            if self._size + added > self._limits.table:
                raise KVLimitError(
                    f"no room for {shorten(namespace)}/{shorten(key)}: the KV configuration"
                    f" would have {self._size + added} bytes,"
                    f" limit {self._limits.table} (maxKvConfigSize)"
                )

    def _forget_empty_namespaces(self) -> None:
        for namespace in [name for name, table in self._table.items() if not table]:
            del self._table[namespace]
            self._size -= _namespace_size(namespace)
            self._encoded.clear()

    async def _save(self) -> None:
        """Wait for a write that starts after this call."""
        if self._next_save is None:
            self._next_save = asyncio.create_task(self._write(), name="save KV configuration")
            self._next_save.add_done_callback(_retrieve)
        await asyncio.shield(self._next_save)

    async def _write(self) -> None:
        async with self._saving:
            self._next_save = None  # later changes belong to the next write
            table = {namespace: dict(entries) for namespace, entries in self._table.items()}
            await asyncio.to_thread(_encode_and_save, self._path, table)


def _encode_and_save(path: Path, table: dict[str, dict[str, str]]) -> None:
    write_file(path, KVConfigSerializeWrapper(table).encode(), backup=True)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Mark an error as retrieved, in case all waiters are gone."""
    if not task.cancelled():
        task.exception()


def _fitting(namespace: str, table: dict[str, str], max_size: int) -> dict[str, str]:
    """Return the entries of a namespace that fit into a body of this size."""
    room = max_size - len(KVTable().encode())
    fitting = {}
    for key, value in table.items():
        room -= _entry_size(key, value)
        if room >= 0:
            fitting[key] = value
        else:
            room += _entry_size(key, value)
    if len(fitting) < len(table):
        logger.warning(
            "namespace %s exceeds a response of %d bytes: left out %d of %d keys",
            shorten(namespace),
            max_size,
            len(table) - len(fitting),
            len(table),
        )
    return fitting


def _added_size(table: dict[str, dict[str, str]], namespace: str, key: str, value: str) -> int:
    """Return by how many bytes the table grows; negative if it shrinks."""
    entries = table.get(namespace)
    if entries is None:
        return _namespace_size(namespace) + _entry_size(key, value)
    old = entries.get(key)
    return _entry_size(key, value) - (0 if old is None else _entry_size(key, old))


def _namespace_size(namespace: str) -> int:
    return len(dump_json(namespace)) + len(":{},")


def _entry_size(key: str, value: str) -> int:
    return len(dump_json(key)) + len(dump_json(value)) + len(":,")
