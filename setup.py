"""Build the compiled kernel, if there is a C compiler; everything else is in pyproject.toml.

An extension that cannot be built is left out, with one line on standard error: pyromq then runs
on its Python code alone. The extensions use the stable ABI of Python 3.11, so one wheel serves
every later version. PYROMQ_PURE=1 skips the build; PYROMQ_CHECKED=1 builds with bounds checks.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL = Path("src/pyromq/protocol/kernel")
STABLE_ABI = 0x030B0000
IS_PURE = os.environ.get("PYROMQ_PURE", "0") not in ("", "0")
HAS_STABLE_ABI = (
    sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
)


class BuildKernel(build_ext):
    """Compiles what it can."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            self._leave_out(error)

    def _leave_out(self, error: Exception) -> None:
        print(f"pyromq: installed without its compiled kernel: {error}", file=sys.stderr)


def extensions() -> list[Extension]:
    if IS_PURE or not HAS_STABLE_ABI:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    checked = os.environ.get("PYROMQ_CHECKED", "0") not in ("", "0")
    return cythonize(
        [
            Extension(
                f"pyromq.protocol.kernel.{source.stem}",
                [str(source)],
                define_macros=[
                    ("Py_LIMITED_API", hex(STABLE_ABI)),
                    ("PYROMQ_CHECKED", "1" if checked else "0"),
                ],
                extra_compile_args=["-O3", "-g0", "-fwrapv"],
                py_limited_api=True,
                optional=True,
            )
            for source in sorted(KERNEL.glob("*.py"))
            if source.stem != "__init__"
        ],
        quiet=True,
    )


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildKernel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI and not IS_PURE else {},
)
