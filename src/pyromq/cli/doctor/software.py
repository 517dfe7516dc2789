"""The versions of Python and its packages, and whether the compiled kernel runs.

Called by `command`, on the main thread.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from pyromq import __version__
from pyromq.cli.doctor.finding import Finding, ok, warn
from pyromq.protocol import kernel


def examine_software() -> Iterator[Finding]:
    """Examine what this installation runs on."""
    yield ok("pyromq", f"version {__version__}")
    name, version = platform.python_implementation(), platform.python_version()
    if name == "CPython" and sys.version_info >= (3, 11):
        yield ok("python", f"{name} {version}")
    else:
        yield warn(
            "python",
            f"{name} {version}",
            "pyromq is measured and tested with CPython",
            "use CPython 3.11 or newer",
        )
    described = kernel.describe()
    if kernel.load("log_piece") is not None:
        yield ok("compiled kernel", described)
    else:
        yield warn(
            "compiled kernel",
            described,
            "without it a broker takes a fraction of the load",
            "install a wheel for this platform, or a C compiler before pip install",
        )
    for package, effect in (
        ("uvloop", "asyncio's own loop takes about half the connections and messages"),
        ("isal", "zlib computes checksums more slowly"),
    ):
        if find_spec(package) is not None:
            yield ok(package, "is installed")
        else:
            yield warn(package, "is not installed", effect, f"pip install {package}")
