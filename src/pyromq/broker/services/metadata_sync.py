"""Temporary."""

from __future__ import annotations

from typing import Any


class MetadataSync:
    """Stub."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        pass

    def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""

    async def sync_now(self) -> None:
        """Now."""
