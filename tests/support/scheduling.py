"""Which worker runs which tests, and in which order, with `pytest -n`.

The tests of a file stay together, and so do those of folders whose files share servers that cost
much. What takes longest begins first, so that no worker is left alone with it at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

#: Their files share brokers, ours and Java's, or Spark's session.
_TOGETHER = ("tests/clients/", "tests/spark/")
#: Files of these folders that have programs of their own instead.
_ALONE = ("tests/spark/test_deployment.py",)
#: In the order in which they begin; everything else follows.
_LONG = (
    "tests/spark/test_deployment.py",
    "tests/spark/",
    "tests/clients/",
    "tests/interop/test_raft_groups.py",
    "tests/interop/test_mqadmin.py",
    "tests/interop/test_store_compat.py",
    "tests/interop/",
    "tests/crash/",
    "tests/fuzz/",
    "tests/examples/",
    "tests/integration/",
)


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """`--dist loadfile`, but for folders that stay together."""

    def _split_scope(self, nodeid: str) -> str:
        alone: str = super()._split_scope(nodeid)
        if alone in _ALONE:
            return alone
        return next((folder for folder in _TOGETHER if nodeid.startswith(folder)), alone)


def long_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which they begin; those of a file as they were."""

    def place(item: pytest.Item) -> int:
        return next(
            (at for at, start in enumerate(_LONG) if item.nodeid.startswith(start)), len(_LONG)
        )

    return sorted(items, key=place)
