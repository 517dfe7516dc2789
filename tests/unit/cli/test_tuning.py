from __future__ import annotations

import gc
import resource
import sys
import weakref
from collections.abc import Iterator

import pytest

from pyromq.cli.tuning import allow_open_files, settle


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # An earlier test may have settled the process already.
    sys.setswitchinterval(0.005)
    gc.set_threshold(700, 10, 10)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_open_file_limit_is_raised_to_the_hard_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))

    allow_open_files()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    allow_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_settled_process_collects_rarely_and_switches_often() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    interval = sys.getswitchinterval()

    settle()

    assert gc.isenabled()
    assert gc.get_threshold()[0] > thresholds[0]
    assert gc.get_freeze_count() > frozen
    assert sys.getswitchinterval() < interval


def test_garbage_made_before_is_collected_first() -> None:
    class Node:
        """Refers to itself."""

    node = Node()
    node.itself = node  # type: ignore[attr-defined]
    collected = []
    weak = weakref.ref(node, lambda _: collected.append(1))
    del node

    settle()

    assert weak() is None
    assert collected == [1]
