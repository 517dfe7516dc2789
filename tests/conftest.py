"""Settings of all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.clients import patient_clients
from tests.support.examples import examples, is_soak

# How long an example takes says more about the machine's other work than about the code. The
# same ones in each run: who changes nothing sees nothing new fail. A soak looks for new ones.
settings.register_profile(
    "pyromq",
    deadline=None,
    max_examples=examples(100),
    derandomize=not is_soak(),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pyromq")


@pytest.fixture(scope="session", autouse=True)
def _clients_of_tests() -> Iterator[None]:
    with patient_clients():
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than cores: tests with brokers and clients of others wait more than they compute.

    Unit tests keep a quarter of a core busy and raft groups with Java's nodes a third, measured on
    a machine with other work.
    """
    return len(os.sched_getaffinity(0)) + 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share servers stay together."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.scheduling import Scheduling

    config.option.loadscopereorder = False  # the order is that of the collection
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, what takes longest begins first."""
    if hasattr(config, "workerinput"):
        from tests.support.scheduling import long_first

        items[:] = long_first(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch what tests with others' programs need, before a test's time-out runs."""
    if not session.config.option.collectonly and any(
        item.get_closest_marker("interop") for item in session.items
    ):
        from tests.interop.client_programs import build_everything

        build_everything()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a failure without the garbage collector.

    A report parses the failed test's source. Python before 3.11.8 and 3.12.2 counts the depth of
    a parse for all threads together, and when a collection in the middle of it lets another
    thread in that parses, too, as one that logs a traceback does, it raises a SystemError
    (python/cpython#106905), which ends the whole run.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if enabled:
            gc.enable()
