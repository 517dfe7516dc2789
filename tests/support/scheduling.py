"""Which worker runs which tests, and in which order, with `pytest -n`.

The tests of a file stay together, and so do those of folders whose files share servers that cost
much. Tests that start everything they need themselves are distributed one by one. Groups that take
longest begin first, so that no worker is left alone with one at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

#: Their files share brokers, ours and Java's, or Spark's session.
_TOGETHER = ("tests/clients/", "tests/spark/")
#: Files of these folders that have servers of their own instead.
_ALONE = (
    "tests/clients/test_access_control.py",
    "tests/clients/test_faults.py",
    "tests/clients/test_replicas.py",
    "tests/clients/test_security.py",
)
#: Each test of these files starts its own programs.
_APART = (
    "tests/fuzz/test_kernel.py",
    "tests/interop/test_metadata_sync.py",
    "tests/interop/test_raft_groups.py",
    "tests/interop/test_replication.py",
    "tests/spark/test_commands.py",
    "tests/spark/test_deployment.py",
)
#: In the order in which they begin; everything else follows. xdist gives a worker its next group
#: before the last test of the current one: large groups come first, or they wait behind long tests.
_LONG = (
    "tests/spark/",
    "tests/clients/",
    "tests/interop/test_raft_groups.py",
    "tests/spark/test_deployment.py",
    "tests/interop/test_raft_replacement.py",
    "tests/spark/test_commands.py",
    "tests/interop/test_mqadmin.py",
    "tests/interop/test_replication.py",
    "tests/interop/test_store_compat.py",
    "tests/interop/test_ledger_groups.py",
    "tests/fuzz/test_kernel.py",
    "tests/fuzz/test_live_requests.py",
    "tests/interop/",
    "tests/crash/",
    "tests/fuzz/",
    "tests/examples/",
    "tests/integration/",
    "tests/raft/",
    "tests/unit/testing/",
    "tests/unit/cli/",
    "tests/unit/replication/",
)


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """`--dist loadfile`, but for folders that stay together and for files that are split."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the name of the group of tests that stays on one worker."""
    file = nodeid.partition("::")[0]
    if file in _APART:
        return nodeid
    if file in _ALONE:
        return file
    return next((folder for folder in _TOGETHER if file.startswith(folder)), file)


def long_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which they begin; those of a file as they were."""
    return sorted(items, key=lambda item: place_of(item.nodeid))


def place_of(nodeid: str) -> int:
    """Return the place of a test in the order; the longest name that fits counts."""
    fitting = [start for start in _LONG if nodeid.startswith(start)]
    return _LONG.index(max(fitting, key=len)) if fitting else len(_LONG)
