"""Imports point down: between packages, between sub-packages, and never in a circle.

Every import counts, also one inside a function or for types alone (`if TYPE_CHECKING:`). Imports
for types are exempt only from the list of outside modules that pure code may load, because
nothing is loaded.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import pyromq

SOURCE = Path(pyromq.__file__).parent

#: What each package may import beside itself. A package that is missing here fails the test.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "base": frozenset(),
    "protocol": frozenset({"base"}),
    "store": frozenset({"protocol", "base"}),
    "tls": frozenset({"protocol", "base"}),
    "acl": frozenset({"protocol", "base"}),
    "remoting": frozenset({"tls", "protocol", "base"}),
    "replication": frozenset({"remoting", "store", "tls", "protocol", "base"}),
    "raft": frozenset({"remoting", "store", "tls", "protocol", "base"}),
    "metrics": frozenset({"remoting", "protocol", "base"}),
    "nameserver": frozenset({"acl", "metrics", "remoting", "tls", "protocol", "base"}),
    "broker": frozenset(
        {"acl", "metrics", "replication", "raft", "remoting", "store", "tls", "protocol", "base"}
    ),
    "client": frozenset({"remoting", "tls", "protocol", "base"}),
    "otel": frozenset({"client", "remoting", "protocol", "base"}),
    "admin": frozenset({"client", "remoting", "tls", "protocol", "base"}),
    "spark": frozenset({"client", "store", "remoting", "tls", "protocol", "base"}),
    "testing": frozenset(
        {
            "acl",
            "client",
            "broker",
            "nameserver",
            "raft",
            "remoting",
            "store",
            "tls",
            "protocol",
            "base",
        }
    ),
    "cli": frozenset(
        {
            "acl",
            "admin",
            "broker",
            "client",
            "metrics",
            "nameserver",
            "raft",
            "spark",
            "store",
            "remoting",
            "tls",
            "protocol",
            "base",
        }
    ),
    "__main__": frozenset({"cli"}),
    "__init__": frozenset({"moved"}),
    "moved": frozenset(),
}

#: Sub-packages from the bottom up: each may import those before it, and none after it. Modules
#: beside them (`store/config.py`, `store/message_store.py`) may be below or above; the test for
#: cycles between modules orders those.
SUB_PACKAGES: dict[str, tuple[str, ...]] = {
    "protocol": ("java", "message", "wire", "filter", "kernel"),
    "store": ("log", "queues", "index", "recovery", "offline", "backup"),
    "raft": ("network", "node", "offline"),
    "broker": ("state", "services", "services.upkeep", "handlers", "handlers.admin", "metrics"),
    "client": ("session", "producer", "consumer", "consumer.push", "consumer.lite_pull"),
    "spark": (
        "runtime",
        "origins",
        "reading",
        "sink",
        "archive",
        "replay",
        "stores",
        "report",
        "audit",
        "sql",
        "jobs",
    ),
    "admin": ("groups", "messages"),
    "cli": ("bench", "brokers", "raft", "admin", "backups", "doctor"),
}

_START = "loads its job, and Spark with it, when it runs: --help and usage errors stay quick"

_PYTEST = "pytest imports it in every run: only tests that use a cluster pay for the servers"

#: Modules whose functions import modules of ours, and why. Everything else imports at its top.
LAZY: dict[str, str] = {
    "pyromq.broker.broker": "raft groups and metrics would add 0.03 s to the start of every broker",
    "pyromq.nameserver.server": "metrics would add 0.01 s to the start of every NameServer",
    "pyromq.cli.running": "servers must not load the client: it would add 0.2 s to their start",
    "pyromq.spark.jobs.archive": _START,
    "pyromq.spark.jobs.audit": _START,
    "pyromq.spark.jobs.compact": _START,
    "pyromq.spark.jobs.rebuild": _START,
    "pyromq.spark.jobs.replay": _START,
    "pyromq.spark.jobs.report": _START,
    "pyromq.spark.jobs.running": _START,
    "pyromq.spark.jobs.sql": _START,
    "pyromq.spark.jobs.verify": _START,
    "pyromq.spark.origins.opening": "a broker loads the client, a store the store's readers",
    "pyromq.testing.__init__": _PYTEST,
    "pyromq.testing.plugin": _PYTEST,
    "pyromq.spark.source": "Spark lists the columns in a process of its own, which reads nothing",
}

#: Modules of more than 600 lines, and why they are not two.
LONG: dict[str, str] = {}

#: Everything that pure code loads from outside. No socket, file, clock, thread or loop.
PURE = frozenset(
    {
        "__future__",
        "base64",
        "bisect",
        "collections",
        "cython",  # the compiled kernel: structs, pointers, memchr
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "hmac",
        "ipaddress",
        "isal",
        "itertools",
        "json",
        "lz4",
        "math",
        "numpy",
        "operator",
        "orjson",
        "re",
        "struct",
        "sys",  # the machine's byte order
        "types",
        "typing",
        "zlib",
        "zstandard",
    }
)

#: Modules of `base` that are as pure as the protocol, which imports no others.
PURE_BASE = frozenset(
    {"light_dataclass", "log_lines", "memo", "settings", "sizes", "unsupported_settings"}
)


#: Finds compiled modules in the installation, so it must know files.
KERNEL_LOADER = "pyromq.protocol.kernel.__init__"


class Import(NamedTuple):
    """An import: the module's full name, the line, and when it happens."""

    name: str
    line: int
    for_types: bool
    in_function: bool


def imports_of(module: str, source: str) -> Iterator[Import]:
    """Yield every import of a module's source."""
    tree = ast.parse(source)
    for_types, in_function = set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for_types.update(id(inner) for each in node.body for inner in ast.walk(each))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            in_function.update(id(inner) for inner in ast.walk(node))
    package = module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parent = ".".join([*base, *([node.module] if node.module else [])])
            # `from pyromq import store` imports a module as much as `import pyromq.store`.
            names = [
                f"{parent}.{alias.name}" if _is_module(f"{parent}.{alias.name}") else parent
                for alias in node.names
            ]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            names = [ast.literal_eval(node.args[0])] if _is_text(node.args) else ["(computed)"]
        else:
            continue
        for name in dict.fromkeys(names):
            yield Import(name, node.lineno, id(node) in for_types, id(node) in in_function)


def _is_module(name: str) -> bool:
    top, *parts = name.split(".")
    path = SOURCE.joinpath(*parts)
    return top == "pyromq" and (path.with_suffix(".py").is_file() or path.is_dir())


def _is_text(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant)


def breaches(module: str, source: str) -> list[str]:
    """Return what is wrong with a module's imports, one line each."""
    layer = module.split(".")[1]
    if layer not in MAY_IMPORT:
        return [f"{module}: package {layer} has no place in the layers"]
    found = []
    for name, line, for_types, in_function in imports_of(module, source):
        top, _, rest = name.partition(".")
        if top != "pyromq":
            if _is_pure(module) and top not in PURE and not for_types:
                found.append(f"{module}:{line} imports {name}, which is not pure")
            continue
        target = rest.partition(".")[0]
        if target not in MAY_IMPORT:
            continue  # the package itself holds the version
        if target != layer and target not in MAY_IMPORT[layer]:
            found.append(f"{module}:{line} imports {name}, which {layer} must not")
        elif _is_pure(module) and target == "base" and not _is_pure(name):
            found.append(f"{module}:{line} imports {name}, which is not pure")
        elif target == layer and not _points_down(module, name):
            found.append(f"{module}:{line} imports {name}, a sub-package above its own")
        elif in_function and not for_types and module not in LAZY:
            found.append(f"{module}:{line} imports {name} in a function, without a reason in LAZY")
    return found


def _is_pure(module: str) -> bool:
    _, layer, *rest = module.split(".")
    if module == KERNEL_LOADER:
        return False
    return layer == "protocol" or (layer == "base" and bool(rest) and rest[0] in PURE_BASE)


def _points_down(module: str, name: str) -> bool:
    own, other = _level(module), _level(name)
    return own is None or other is None or other <= own


def _level(module: str) -> int | None:
    """Return a module's place in the order of its package's sub-packages."""
    _, layer, *rest = module.split(".")
    order = SUB_PACKAGES.get(layer, ())
    for length in range(len(rest), 0, -1):
        name = ".".join(rest[:length])
        if name in order:
            return order.index(name)
    return None


def cycle_of(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return modules that import each other in a circle, or an empty list."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(SOURCE.parent).with_suffix("").parts), path)
        for path in sorted(SOURCE.rglob("*.py"))
    ]


def test_there_is_something_to_check() -> None:
    names = {name for name, _ in modules()}
    assert {"pyromq.protocol.wire.frame", "pyromq.broker.handlers.send"} <= names


def test_imports_point_down() -> None:
    found = [line for name, path in modules() for line in breaches(name, path.read_text())]
    assert found == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {
        name.removesuffix(".__init__"): {
            each.name
            for each in imports_of(name, path.read_text())
            if each.name.startswith("pyromq.") and each.name != name.removesuffix(".__init__")
        }
        for name, path in modules()
    }
    assert cycle_of(imports) == []


def test_layers_have_no_cycle() -> None:
    assert cycle_of(MAY_IMPORT) == []


def test_every_sub_package_has_its_place() -> None:
    missing = [
        name
        for package in MAY_IMPORT
        for path in sorted((SOURCE / package).rglob("__init__.py"))
        if (name := ".".join(path.parent.relative_to(SOURCE / package).parts))
        and name not in SUB_PACKAGES.get(package, ())
    ]
    assert missing == []


def test_lazy_modules_import_in_functions() -> None:
    """A module that no longer does so leaves the list."""
    sources = dict(modules())
    idle = [
        module
        for module in LAZY
        if not any(
            each.in_function and each.name.startswith("pyromq.")
            for each in imports_of(module, sources[module].read_text())
        )
    ]
    assert idle == []


def test_no_folder_and_no_module_is_too_large() -> None:
    crowded = {
        str(folder.relative_to(SOURCE)): count
        for folder in {path.parent for _, path in modules()}
        if (count := sum(path.name != "__init__.py" for path in folder.glob("*.py"))) > 20
    }
    long = {
        name: lines
        for name, path in modules()
        if (lines := len(path.read_text().splitlines())) > 600 and name not in LONG
    }
    assert (crowded, long) == ({}, {})


def test_pure_modules_exist() -> None:
    known = sys.stdlib_module_names | {"cython", "isal", "lz4", "numpy", "orjson", "zstandard"}
    assert known >= PURE
    assert all((SOURCE / "base" / f"{name}.py").is_file() for name in PURE_BASE)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pyromq.protocol.wire.frame", "import pyromq.store.config"),
        ("pyromq.protocol.wire.frame", "from pyromq.remoting.server import Connection"),
        ("pyromq.protocol.filter.tags", "from ...store import index"),
        ("pyromq.protocol.wire.frame", "from pyromq import store"),
        ("pyromq.protocol.wire.frame", "def f():\n    from pyromq.broker import broker"),
        ("pyromq.protocol.wire.frame", "if TYPE_CHECKING:\n    from pyromq.store import index"),
        ("pyromq.protocol.wire.frame", "importlib.import_module('pyromq.store')"),
        ("pyromq.protocol.wire.frame", "import socket"),
        ("pyromq.protocol.wire.frame", "import asyncio"),
        ("pyromq.protocol.wire.frame", "from os import path"),
        ("pyromq.protocol.wire.frame", "import os.path"),
        ("pyromq.protocol.wire.frame", "import time"),
        ("pyromq.protocol.wire.frame", "from datetime import datetime"),
        ("pyromq.protocol.wire.frame", "import threading"),
        ("pyromq.protocol.wire.frame", "import mmap"),
        ("pyromq.protocol.wire.frame", "from pathlib import Path"),
        ("pyromq.protocol.wire.frame", "import logging"),
        ("pyromq.protocol.wire.frame", "try:\n    import random\nexcept ImportError:\n    pass"),
        ("pyromq.protocol.wire.frame", "from pyromq.base import atomic_file"),
        ("pyromq.protocol.wire.frame", "from pyromq.base.clock import now_ms"),
        ("pyromq.protocol.message.record", "from pyromq.protocol.wire.frame import MAX_FRAME"),
        ("pyromq.base.memo", "import time"),
        ("pyromq.base.clock", "from pyromq.protocol.wire import frame"),
        ("pyromq.store.log.commit_log", "from pyromq.store.recovery.walk import walk"),
        ("pyromq.client.consumer.pull", "from pyromq.client.consumer.push import consumer"),
        ("pyromq.store.log.commit_log", "def f():\n    from pyromq.store import config"),
        ("pyromq.store.index.index", "from pyromq.remoting.server import Connection"),
        ("pyromq.remoting.server", "from pyromq.store.results import GetStatus"),
        ("pyromq.nameserver.server", "from pyromq.broker.broker import Broker"),
        ("pyromq.nameserver.server", "from pyromq.store.config import MessageStoreConfig"),
        ("pyromq.broker.broker", "from pyromq.nameserver.server import NameServer"),
        ("pyromq.broker.broker", "from pyromq.client import Producer"),
        ("pyromq.client.producer.producer", "from pyromq.broker.config import BrokerConfig"),
        ("pyromq.broker.broker", "from pyromq.cli.main import main"),
        ("pyromq.newcomer.module", "import struct"),
    ],
)
def test_a_breach_is_found(module: str, source: str) -> None:
    assert len(breaches(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pyromq.protocol.wire.frame", "import struct\nfrom pyromq.protocol import names"),
        ("pyromq.protocol.filter.tags", "from ..java.string_hash import java_hash"),
        ("pyromq.protocol.message.bulk", "if TYPE_CHECKING:\n    from mmap import mmap"),
        ("pyromq.protocol.wire.frame", "from pyromq import __version__"),
        ("pyromq.protocol.wire.frame", "from pyromq.base.memo import Memo"),
        ("pyromq.store.index.index", "import mmap\nfrom pyromq.protocol.message import bulk"),
        ("pyromq.cli.main", "from pyromq.broker.broker import Broker"),
        ("pyromq.broker.broker", "from pyromq.store.message_store import MessageStore"),
        ("pyromq.store.recovery.walk", "from pyromq.store.log.commit_log import CommitLog"),
        ("pyromq.store.index.index", "def f():\n    import ctypes"),
    ],
)
def test_what_is_allowed_is_not_a_breach(module: str, source: str) -> None:
    assert breaches(module, source) == []


def test_a_circle_is_found() -> None:
    assert set(cycle_of({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})) == {"a", "b", "c"}
    assert cycle_of({"a": ["b", "c"], "b": ["c"]}) == []
