"""Imports point down only: the layers, what each may import, and that a breach is found.

Every import counts, also one inside a function. Imports for types alone
(`if TYPE_CHECKING:`) are exempt from the list of what the protocol may import from
outside, since nothing is loaded, but not from the order of the layers.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pyromq

SOURCE = Path(pyromq.__file__).parent

#: What each package may import beside itself. A package that is not here fails the test:
#: whoever adds one says where it stands.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "base": frozenset(),
    "protocol": frozenset(),
    "store": frozenset({"protocol"}),
    "remoting": frozenset({"protocol"}),
    "replication": frozenset({"protocol"}),
    "nameserver": frozenset({"remoting", "protocol"}),
    "broker": frozenset({"remoting", "replication", "store", "protocol"}),
    "client": frozenset({"remoting", "protocol"}),
    "admin": frozenset({"client", "remoting", "protocol"}),
    "cli": frozenset(
        {
            "admin",
            "base",
            "broker",
            "client",
            "nameserver",
            "protocol",
            "remoting",
            "replication",
            "spark",
            "store",
        }
    ),
    "spark": frozenset({"admin", "base", "client", "store", "remoting", "protocol"}),
    "testing": frozenset(
        {"admin", "client", "broker", "nameserver", "remoting", "replication", "store", "protocol"}
    ),
    # `python -m pyromq`
    "__main__": frozenset({"cli"}),
    "__init__": frozenset(),
}

#: All that the protocol needs from outside. No socket, file, clock, thread or loop is among it.
PURE = frozenset(
    {
        "__future__",
        "base64",
        "bisect",
        "collections",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "hmac",
        "ipaddress",
        "itertools",
        "math",
        "isal",
        "numpy",
        "operator",
        "orjson",
        "re",
        "struct",
        "sys",  # the machine's byte order
        "types",
        "typing",
        "lz4",
        "zlib",
        "zstandard",
    }
)


class Import(NamedTuple):
    """One import of a module: what, at which line, and whether only for types."""

    name: str
    line: int
    for_types: bool


def imports_of(module: str, source: str) -> Iterator[Import]:
    """Every import of a module's source, as full names."""
    tree = ast.parse(source)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    package = module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parent = ".".join([*base, *([node.module] if node.module else [])])
            # `from pyromq import store` imports a package as much as `import pyromq.store`.
            names = [
                f"{parent}.{alias.name}" if parent == "pyromq" else parent for alias in node.names
            ]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            names = [ast.literal_eval(node.args[0])] if _is_text(node.args) else ["(computed)"]
        else:
            continue
        for name in names:
            yield Import(name, node.lineno, id(node) in for_types)


def _is_text(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant)


def breaches(module: str, source: str) -> list[str]:
    """What is wrong with a module's imports, one line each."""
    layer = module.split(".")[1]
    if layer not in MAY_IMPORT:
        return [f"{module}: package {layer} has no place in the layers"]
    found = []
    for name, line, for_types in imports_of(module, source):
        top, _, rest = name.partition(".")
        if top == "pyromq":
            target = rest.partition(".")[0]
            # The package itself holds the version, which everybody may ask for.
            if target in MAY_IMPORT and target != layer and target not in MAY_IMPORT[layer]:
                found.append(f"{module}:{line} imports {name}, which {layer} must not")
        elif layer == "protocol" and top not in PURE and not for_types:
            found.append(f"{module}:{line} imports {name}, which is not pure")
    return found


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(SOURCE.parent).with_suffix("").parts), path)
        for path in sorted(SOURCE.rglob("*.py"))
    ]


def test_there_is_something_to_look_at() -> None:
    names = {name for name, _ in modules()}
    assert {"pyromq.protocol.frame", "pyromq.broker.handlers.send", "pyromq.cli.main"} <= names


def test_imports_point_down() -> None:
    found = [line for name, path in modules() for line in breaches(name, path.read_text())]
    assert found == []


def test_layers_have_no_cycle() -> None:
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        ready = [
            name for name, below in MAY_IMPORT.items() if name not in order and below <= set(order)
        ]
        assert ready, f"a cycle among {set(MAY_IMPORT) - set(order)}"
        order += ready


def test_pure_modules_exist() -> None:
    known = sys.stdlib_module_names | {"isal", "lz4", "numpy", "orjson", "zstandard"}
    assert known >= PURE


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pyromq.protocol.frame", "import pyromq.store.config"),
        ("pyromq.protocol.frame", "from pyromq.remoting.server import Connection"),
        ("pyromq.protocol.filter.tags", "from ...store import index"),
        ("pyromq.protocol.frame", "from pyromq import store"),
        ("pyromq.protocol.frame", "def f():\n    from pyromq.broker import broker"),
        ("pyromq.protocol.frame", "if TYPE_CHECKING:\n    from pyromq.store import index"),
        ("pyromq.protocol.frame", "importlib.import_module('pyromq.store')"),
        ("pyromq.protocol.frame", "import socket"),
        ("pyromq.protocol.frame", "import asyncio"),
        ("pyromq.protocol.frame", "from os import path"),
        ("pyromq.protocol.frame", "import os.path"),
        ("pyromq.protocol.frame", "import time"),
        ("pyromq.protocol.frame", "from datetime import datetime"),
        ("pyromq.protocol.frame", "import threading"),
        ("pyromq.protocol.frame", "import mmap"),
        ("pyromq.protocol.frame", "from pathlib import Path"),
        ("pyromq.protocol.frame", "import logging"),
        ("pyromq.protocol.frame", "try:\n    import random\nexcept ImportError:\n    pass"),
        ("pyromq.store.index", "from pyromq.remoting.server import Connection"),
        ("pyromq.remoting.server", "from pyromq.store.results import GetStatus"),
        ("pyromq.nameserver.server", "from pyromq.broker.broker import Broker"),
        ("pyromq.nameserver.server", "from pyromq.store.config import MessageStoreConfig"),
        ("pyromq.broker.broker", "from pyromq.nameserver.server import NameServer"),
        ("pyromq.broker.broker", "from pyromq.client import Producer"),
        ("pyromq.client.producer", "from pyromq.broker.config import BrokerConfig"),
        ("pyromq.client.producer", "from pyromq.nameserver.config import NamesrvConfig"),
        ("pyromq.broker.broker", "from pyromq.cli.main import main"),
        ("pyromq.newcomer.module", "import struct"),
    ],
)
def test_a_breach_is_found(module: str, source: str) -> None:
    assert len(breaches(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pyromq.protocol.frame", "import struct\nfrom pyromq.protocol.codes import RequestCode"),
        ("pyromq.protocol.filter.tags", "from ..java_hash import java_hash"),
        ("pyromq.protocol.bulk", "if TYPE_CHECKING:\n    from mmap import mmap"),
        ("pyromq.protocol.frame", "from pyromq import __version__"),
        ("pyromq.store.index", "import mmap, threading\nfrom pyromq.protocol import bulk"),
        ("pyromq.cli.main", "from pyromq.broker.broker import Broker"),
        ("pyromq.broker.broker", "from pyromq.store.message_store import MessageStore"),
    ],
)
def test_what_is_allowed_is_no_breach(module: str, source: str) -> None:
    assert breaches(module, source) == []
