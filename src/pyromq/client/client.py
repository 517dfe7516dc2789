"""What all asynchronous clients have: a life between `start` and `close`, and an id.

    async with Producer(...) as producer:   # start
        ...                                 # close, however the block ends

Base of producers and consumers; each has one `Session`. On the event loop of its owner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from pyromq.client.session.session import Session


class Client(ABC):
    """A producer or consumer."""

    _session: Session

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def start(self) -> None:
        """Make it ready. A second time changes nothing."""

    @abstractmethod
    async def close(self) -> None:
        """End what is under way, leave the cluster. A second time changes nothing."""

    @property
    def client_id(self) -> str:
        """By which brokers know this client."""
        return self._session.client_id
