"""Builds the driver programs of the clients, once for each state of their sources, and starts them.

Everything that is fetched or built is kept below the cache directory of the checkout: Maven's
artifacts as for the Java broker, Go's modules and binaries, Node's packages. Versions are fixed
by the files beside the programs (go.mod and go.sum, package-lock.json) and by CLIENTS.

Called by the interop tests; every call blocks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.client_driver import ClientDriver
from tests.interop.java_programs import (
    BROKER,
    CLIENT,
    INTEROP_SOURCES,
    JVM_OPTIONS,
    TOOLS,
    compiled,
    javac_or_skip,
)
from tests.support.apache_rocketmq import CACHE, VERSION, classpath, java_or_skip
from tests.support.downloads import DownloadError, download

_HERE = Path(__file__).parent
_GO_CACHE = CACHE.parent / "go"
_NODE_CACHE = CACHE.parent / "node"
_JAVA_5_VERSION = "5.3.3"


def build_everything() -> None:
    """Fetch and build what any test may need, as far as this machine has the tools for it.

    Before the first test: on a new machine this takes minutes, which are no test's own. What
    cannot be fetched is left to the tests that need it, which say so.
    """
    builds: list[Callable[[], object]] = []
    if all(map(shutil.which, ("java", "javac", "mvn"))):
        for version in (VERSION, _JAVA_5_VERSION):
            builds.append(partial(_java_program, version))
            builds.append(partial(classpath, f"org.apache.rocketmq:rocketmq-namesrv:{version}"))
            builds.append(partial(classpath, f"org.apache.rocketmq:rocketmq-broker:{version}"))
        builds += [
            partial(compiled, INTEROP_SOURCES, CLIENT),
            partial(compiled, INTEROP_SOURCES / "transactions", CLIENT),
            partial(compiled, INTEROP_SOURCES / "store", BROKER),
            partial(compiled, INTEROP_SOURCES / "mqadmin", TOOLS),
        ]
    if shutil.which("go"):
        builds.append(_go_program)
    if shutil.which("node") and shutil.which("npm"):
        builds.append(_node_program)
    for build in builds:
        with suppress(DownloadError):
            build()


def java_driver(version: str = VERSION, *options: str) -> ClientDriver:
    """The Java client of a version; options are the JVM's."""
    java_or_skip()
    javac_or_skip()
    return ClientDriver(
        [
            "java",
            *JVM_OPTIONS,
            "-Xmx256m",
            "-Drocketmq.client.rebalance.lockInterval=1000",
            "-Duser.home={home}",
            "-Drocketmq.client.logRoot={home}",
            *options,
            "-cp",
            _java_program(version),
            "Driver",
        ]
    )


def _java_program(version: str) -> str:
    """Its class path."""
    return compiled(INTEROP_SOURCES / "driver", f"org.apache.rocketmq:rocketmq-tools:{version}")


def go_driver() -> ClientDriver:
    """rocketmq-client-go, as tests/interop/go/go.mod names it."""
    _tool_or_skip("go", "the Go client")
    return ClientDriver([str(_go_program() / "driver")])


def _go_program() -> Path:
    sources = _HERE / "go"
    environment = {
        **os.environ,
        "GOMODCACHE": str(_GO_CACHE / "modules"),
        "GOCACHE": str(_GO_CACHE / "build"),
        "GOFLAGS": "-modcacherw -buildvcs=false",
    }

    def build(target: Path) -> None:
        command = ["go", "build", "-o", str(target / "driver"), "."]
        download("the Go client", command, sources, environment)

    return _built(_GO_CACHE / "bin", sources, build)


def node_driver() -> ClientDriver:
    """ali-ons, as tests/interop/node/package-lock.json names it."""
    node = _tool_or_skip("node", "the Node client")
    _tool_or_skip("npm", "the Node client")
    return ClientDriver([node, str(_node_program() / "driver.js")])


def _node_program() -> Path:
    sources = _HERE / "node"

    def build(target: Path) -> None:
        for source in sources.iterdir():
            shutil.copy(source, target)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        download("the Node client", command, target)

    return _built(_NODE_CACHE, sources, build)


class Client(NamedTuple):
    """A client library: its driver, and what it can do beyond sending and receiving."""

    start: Callable[[], ClientDriver]
    abilities: frozenset[str]
    #: Whether only the long run (`pytest -m soak`) uses it.
    in_soak_only: bool = False


_NODE = frozenset({"sync", "ordered"})
_GO = _NODE | {"async", "oneway", "batch", "transaction", "orderly", "sql"}
#: 5.x has the rest, too, but asks for it in ways that a 4.9 broker does not know.
_JAVA_5 = _GO | {"pull", "queues"}
_JAVA = _JAVA_5 | {"lite", "request", "trace", "reset"}

CLIENTS = {
    f"java-{VERSION}": Client(java_driver, _JAVA),
    # The same with headers in RocketMQ's own encoding instead of JSON.
    f"java-{VERSION}-binary": Client(
        lambda: java_driver(VERSION, "-Drocketmq.serialize.type=ROCKETMQ"), _JAVA, in_soak_only=True
    ),
    f"java-{_JAVA_5_VERSION}": Client(lambda: java_driver(_JAVA_5_VERSION), _JAVA_5),
    "go": Client(go_driver, _GO),
    "node": Client(node_driver, _NODE),
}


def _tool_or_skip(name: str, what: str) -> str:
    path = shutil.which(name)
    if path is None:
        reason = f"{name} not found on PATH: it is needed for {what}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason + " (CI=true: a skip is a failure)")
        pytest.skip(reason)
    return path


def _built(cache: Path, sources: Path, build: Callable[[Path], None]) -> Path:
    """The directory with what `build` makes of the sources, made unless it is there."""
    digest = hashlib.sha256()
    for source in sorted(sources.iterdir()):
        digest.update(f"{source.name}\n".encode() + source.read_bytes())
    built = cache / digest.hexdigest()[:16]
    with _locked(cache):
        if not built.exists():
            fresh = Path(tempfile.mkdtemp(dir=cache))
            try:
                build(fresh)
            except BaseException:
                shutil.rmtree(fresh)
                raise
            fresh.rename(built)
    return built


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
