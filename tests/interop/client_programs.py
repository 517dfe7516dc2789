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
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.client_driver import ClientDriver
from tests.interop.java_programs import JVM_OPTIONS, compiled, javac_or_skip
from tests.support.apache_rocketmq import CACHE, VERSION, java_or_skip

_HERE = Path(__file__).parent
_GO_CACHE = CACHE.parent / "go"
_NODE_CACHE = CACHE.parent / "node"


def java_driver(version: str = VERSION, *options: str) -> ClientDriver:
    """The Java client of a version; options are the JVM's."""
    java_or_skip()
    javac_or_skip()
    class_path = compiled(
        _HERE / "java" / "driver", f"org.apache.rocketmq:rocketmq-tools:{version}"
    )
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
            class_path,
            "Driver",
        ]
    )


def go_driver() -> ClientDriver:
    """rocketmq-client-go, as tests/interop/go/go.mod names it."""
    go = _tool_or_skip("go", "the Go client")
    sources = _HERE / "go"
    environment = {
        **os.environ,
        "GOMODCACHE": str(_GO_CACHE / "modules"),
        "GOCACHE": str(_GO_CACHE / "build"),
        "GOFLAGS": "-modcacherw -buildvcs=false",
    }

    def build(target: Path) -> None:
        _run([go, "build", "-o", str(target / "driver"), "."], sources, environment)

    built = _built(_GO_CACHE / "bin", sources, build)
    return ClientDriver([str(built / "driver")])


def node_driver() -> ClientDriver:
    """ali-ons, as tests/interop/node/package-lock.json names it."""
    node = _tool_or_skip("node", "the Node client")
    npm = _tool_or_skip("npm", "the Node client")
    sources = _HERE / "node"

    def build(target: Path) -> None:
        for source in sources.iterdir():
            shutil.copy(source, target)
        _run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], target, dict(os.environ))

    built = _built(_NODE_CACHE, sources, build)
    return ClientDriver([node, str(built / "driver.js")])


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
    "java-5.3.3": Client(lambda: java_driver("5.3.3"), _JAVA_5),
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


def _run(command: list[str], directory: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=directory, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} failed in {directory}:\n{(done.stdout + done.stderr)[-3000:]}"
        )
