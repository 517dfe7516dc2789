"""The key-value configuration that a NameServer keeps for administrators.

Namespaces of string tables; the namespace `ORDER_TOPIC_CONFIG` says for ordered topics which
broker has how many queues. Kept in memory and, after every change, in one JSON file in
RocketMQ's form: `{"configTable":{"namespace":{"key":"value"}}}`.

Called by `handlers` on the loop; files are written in a worker thread, one at a time and
always the newest content, so a slow disk delays the answer to a change and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.nameserver import files
from pyromq.protocol.body_codec import Body
from pyromq.protocol.fastjson import BodyError

logger = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KVConfigFileError(Exception):
    """The file and its backup exist but cannot be read."""


@dataclass(slots=True)
class KVConfigSerializeWrapper(Body):
    """The content of the file."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KVConfig:
    """All namespaces, and the file behind them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self._saving = asyncio.Lock()

    def load(self) -> None:
        """Read the file, or its backup. Raises `KVConfigFileError` when both are damaged."""
        failures = []
        for path in (self._path, files.backup_of(self._path)):
            try:
                content = files.load(path)
                if content is None:
                    continue
                self._table = KVConfigSerializeWrapper.decode(content).config_table
            except (OSError, BodyError) as error:
                failures.append(f"{path}: {error}")
                continue
            if failures:
                logger.warning("KV configuration read from the backup: %s", failures[0])
            return
        if failures:
            raise KVConfigFileError(
                f"cannot read the KV configuration ({'; '.join(failures)}); "
                "repair the file or move it away"
            )

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys of a namespace; None when it was never used."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key and save. Raises `OSError` when it is set but could not be saved."""
        self._table.setdefault(namespace, {})[key] = value
        logger.info("KV configuration: %s/%s set to %s", namespace, key, value)
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a key and save. Raises `OSError` when it is gone but could not be saved."""
        self._table.get(namespace, {}).pop(key, None)
        logger.info("KV configuration: %s/%s deleted", namespace, key)
        await self._save()

    async def _save(self) -> None:
        async with self._saving:
            content = KVConfigSerializeWrapper(self._table).encode()
            await asyncio.to_thread(files.save, self._path, content)
