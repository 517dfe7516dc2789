"""Answers of the servers that can be reached, and the error about the others.

For requests whose result is of use although a broker is down. Runs on the event loop of the
`Admin`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from pyromq.admin.errors import PartialFailureError
from pyromq.admin.session import AdminSession

_Result = TypeVar("_Result")


async def from_reachable(
    session: AdminSession,
    what: str,
    addresses: Iterable[str],
    call: Callable[[str], Awaitable[_Result]],
) -> tuple[dict[str, _Result], PartialFailureError | None]:
    """Call for all addresses; return the results by address, and the error if some failed.

    Raises the error if all failed.
    """
    try:
        return await session.on_each(what, addresses, call), None
    except PartialFailureError as error:
        if not error.done:
            raise
        return dict(zip(error.done, error.results, strict=True)), error


def with_results(error: PartialFailureError, what: str, *results: object) -> PartialFailureError:
    """Return the error with other results, which were made of the answers."""
    return PartialFailureError(what, error.done, error.failures, results)
