"""Modules that docstrings and comments name exist.

`store/flush.py` and `store.flush` are names below `src/pyromq`; a bare `flush` is a module of the
same folder and is not checked, because it may as well be a function or a variable.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyromq

PACKAGE = Path(pyromq.__file__).parent
ROOT = PACKAGE.parents[1]
LAYERS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
#: `store/flush.py` or `store.flush`, perhaps with the name of something in it. Dotted names that
#: begin with `spark.` are Spark's settings.
NAMED = re.compile(
    rf"`((?:pyromq[./])?(?:(?:{'|'.join(LAYERS)})/|(?!spark)(?:{'|'.join(LAYERS)})\.)[\w./]+)`"
)


def named_modules(source: str) -> Iterator[tuple[int, str]]:
    """Yield every name of a module in a docstring or comment, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""')):
            for found in NAMED.finditer(token.string):
                yield token.start[0] + token.string.count("\n", 0, found.start()), found[1]


def exists(name: str) -> bool:
    name = name.removeprefix("pyromq.").removeprefix("pyromq/")
    if "/" in name:
        return (PACKAGE / name).exists()
    if name.removesuffix(".py") in LAYERS or name.endswith(".log"):
        return True  # `broker.py` of the same folder, or a log file
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        path = PACKAGE.joinpath(*parts[:count])
        if path.is_dir() or path.with_suffix(".py").is_file():
            # The rest is a class, a method, a field or a constant.
            text = "" if path.is_dir() else path.with_suffix(".py").read_text()
            return all(re.search(rf"\b{part}\b", text) for part in parts[count:])
    return False


def test_modules_named_in_docstrings_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in named_modules(path.read_text())
        if not exists(name)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('"""See `store/flush.py`."""', ["store/flush.py"]),
        ("# as `store.flush.FlushService` does", ["store.flush.FlushService"]),
        ('"""Run `flush`, then `os.fsync`."""', []),
        ("name = '`store/nothing.py`'", []),
    ],
)
def test_names_are_found(source: str, names: list[str]) -> None:
    assert [name for _, name in named_modules(source)] == names


def test_missing_modules_are_found() -> None:
    assert exists("store/message_store.py")
    assert exists("store.message_store.MessageStore")
    assert not exists("store/nothing.py")
    assert not exists("store.message_store.NoSuchThing")
