"""Which tests share a worker, and in which order they begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import scheduling

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/base/test_a.py::test_one[x::y]", "tests/unit/base/test_a.py"),
        ("tests/clients/test_pulling.py::test_one", "tests/clients/"),
        ("tests/clients/test_replicas.py::test_one", "tests/clients/test_replicas.py"),
        ("tests/spark/test_source.py::test_one", "tests/spark/"),
        (
            "tests/spark/test_deployment.py::test_connect",
            "tests/spark/test_deployment.py::test_connect",
        ),
        (
            "tests/interop/test_raft_groups.py::test_one[a-b]",
            "tests/interop/test_raft_groups.py::test_one[a-b]",
        ),
    ],
)
def test_groups(nodeid: str, group: str) -> None:
    assert scheduling.group_of(nodeid) == group


def test_large_groups_begin_first_and_files_keep_their_order() -> None:
    ids = [
        "tests/unit/base/test_a.py::test_2",
        "tests/unit/base/test_a.py::test_1",
        "tests/interop/test_tls.py::test_1",
        "tests/interop/test_raft_groups.py::test_1",
        "tests/spark/test_deployment.py::test_1",
        "tests/spark/test_source.py::test_1",
    ]
    items: Any = [SimpleNamespace(nodeid=nodeid) for nodeid in ids]
    ordered = [item.nodeid for item in scheduling.long_first(items)]
    assert ordered == [ids[5], ids[3], ids[4], ids[2], ids[0], ids[1]]


@pytest.mark.parametrize("name", [*scheduling._ALONE, *scheduling._APART, *scheduling._LONG])
def test_names_are_those_of_files(name: str) -> None:
    assert (ROOT / name).exists()
