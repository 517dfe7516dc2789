"""Build the compiled kernel, if there is a C compiler; everything else is in pyproject.toml.

A build that fails leaves the extensions out, with one line on standard error: pyromq then runs on
its Python code alone. The extensions use the stable ABI of Python 3.11, so one wheel serves every
later version of CPython; PyPy and free-threaded Python, which have no such ABI, get no extensions.

PYROMQ_PURE=1 skips the build. PYROMQ_CHECKED=1 builds with bounds checks, for tests.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import sysconfig
import textwrap
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

PACKAGE = "pyromq.protocol.kernel"
FOLDER = Path("src", *PACKAGE.split("."))
#: The oldest Python that loads the extensions, as the C macro and as the tag of the wheel.
STABLE_ABI = "0x030B0000"
STABLE_ABI_TAG = "cp311"
_REASON_WIDTH = 150

# Run, not imported: the package's dependencies are not there while it is built.
_kernel = runpy.run_path(str(FOLDER / "__init__.py"))
is_stale = _kernel["is_stale"]
mark_source = _kernel["mark_source"]


def is_set(variable: str) -> bool:
    """Whether an environment variable is anything but empty or 0."""
    return os.environ.get(variable, "0") not in ("", "0")


def extensions() -> list[Extension]:
    """Return an extension per module of the kernel; none if this Python cannot load them."""
    has_stable_abi = sys.implementation.name == "cpython" and not sysconfig.get_config_var(
        "Py_GIL_DISABLED"
    )
    if is_set("PYROMQ_PURE") or not has_stable_abi:
        return []
    is_checked = is_set("PYROMQ_CHECKED")
    return [
        Extension(
            f"{PACKAGE}.{source.stem}",
            [str(source)],
            define_macros=[
                ("Py_LIMITED_API", STABLE_ABI),
                ("PYROMQ_CHECKED", str(int(is_checked))),
            ],
            # -O2 saves a tenth of the build, and makes batches a quarter slower; -O1 saves a third,
            # which counts more for tests. Warnings about generated code are for developers, who
            # build with checks.
            extra_compile_args=["-g0", "-fwrapv", *(["-O1"] if is_checked else ["-O3", "-w"])],
            py_limited_api=True,
            optional=True,
        )
        for source in sorted(FOLDER.glob("*.py"))
        if source.stem != "__init__"
    ]


class BuildKernel(build_ext):
    """Compiles the kernel, or says in one line why not."""

    def run(self) -> None:
        if self.inplace and not self.force:
            self.extensions = [each for each in self.extensions if not self._is_current(each)]
        try:
            super().run()
        except Exception as error:
            reason = textwrap.shorten(str(error), _REASON_WIDTH) or type(error).__name__
            print(f"pyromq: built without its compiled kernel: {reason}", file=sys.stderr)

    def build_extensions(self) -> None:
        from Cython.Build import cythonize  # missing after `pip install --no-build-isolation`

        # The C files go to the build directory, so that builds do not share them.
        translated = cythonize(self.extensions, build_dir=self.build_temp, quiet=True, force=True)
        sources = {each.name: each.sources for each in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
            extension.optional = False  # `run` prints one line for all of them
        self.force = True  # times of files do not tell what they were built from
        self.parallel = self.parallel or True
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        super().build_extension(ext)
        mark_source(self.get_ext_fullpath(ext.name), FOLDER)

    def copy_extensions_to_source(self) -> None:
        """Put the extensions beside their sources, atomically: a broker may start meanwhile."""
        for extension in self.extensions:
            target = self._inplace_path(extension)
            partial = target.with_suffix(f".{os.getpid()}")
            shutil.copy2(Path(self.build_lib, self.get_ext_filename(extension.name)), partial)
            partial.replace(target)

    def _is_current(self, extension: Extension) -> bool:
        """Whether the extension beside its source was built from it, with these flags."""
        path = self._inplace_path(extension)
        return (
            path.exists()
            and path.stat().st_mtime > Path(__file__).stat().st_mtime
            and not is_stale(path)
        )

    def _inplace_path(self, extension: Extension) -> Path:
        return FOLDER / Path(self.get_ext_filename(extension.name)).name


class BuildPython(build_py):
    """Leaves the sources of the kernel, which do not run uncompiled, to the source archive."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [each for each in found if package != PACKAGE or each[1] == "__init__"]


class Wheel(bdist_wheel):
    """Tags a wheel by its content: for any platform if it has no extension."""

    def get_tag(self) -> tuple[str, str, str]:
        if not any(Path(self.bdist_dir).rglob("*.so")):
            self.root_is_pure = True
        return super().get_tag()


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildKernel, "build_py": BuildPython, "bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": STABLE_ABI_TAG}},
)
