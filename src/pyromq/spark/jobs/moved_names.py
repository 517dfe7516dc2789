"""Keep documented functions importable from the modules of the commands that used to hold them.

    __getattr__ = moved_names(__name__, audit="pyromq.spark.audit.auditor")

`from pyromq.spark.jobs.audit import audit` then loads the new module on demand; the module of the
audit command itself, which `--help` needs, stays light.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def moved_names(module: str, **homes: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for `module` that finds each name in the module it moved to."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return get
