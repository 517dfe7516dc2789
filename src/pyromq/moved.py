"""Keep documented import paths working after modules moved into sub-packages.

`import pyromq.spark.archiver` returns the module `pyromq.spark.archive.archiver` itself, so that
classes, pickles and monkeypatches are the same under both names. New code and the documentation use
the new names. The finder runs only for imports that no other finder resolves.

`pyromq/__init__.py` calls `install`.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

#: Old module paths that documents and examples named, and the current ones.
MOVED: Final = {
    "pyromq.protocol.codes": "pyromq.protocol.wire.codes",
    "pyromq.protocol.frame": "pyromq.protocol.wire.frame",
    "pyromq.spark.archiver": "pyromq.spark.archive.archiver",
    "pyromq.spark.broker_origin": "pyromq.spark.origins.broker",
    "pyromq.spark.conditions": "pyromq.spark.reading.conditions",
    "pyromq.spark.java": "pyromq.spark.runtime.java",
    "pyromq.spark.origin": "pyromq.spark.origins.origin",
    "pyromq.spark.replayer": "pyromq.spark.replay.replayer",
    "pyromq.spark.sources": "pyromq.spark.origins.opening",
    "pyromq.spark.store_origin": "pyromq.spark.origins.store",
    "pyromq.store.check": "pyromq.store.offline.check",
}


class MovedModules:
    """Resolve old module paths to the modules that replaced them (a meta path finder)."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return a spec for a moved module, or None."""
        return ModuleSpec(name, _Alias()) if name in MOVED else None  # type: ignore[arg-type]


class _Alias:
    """The loader of one old path; threads may import several at a time."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module under its new name, imported as usual."""
        module = importlib.import_module(MOVED[spec.name])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec that the import machinery replaced; the module has already run."""
        module.__spec__ = self._spec


def install() -> None:
    """Register the finder after all others. Idempotent."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
