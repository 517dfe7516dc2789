"""Shell scripts that start Python and Java for Spark, kept in the user's cache.

Spark starts its Python workers with a PYTHONPATH that begins with archives of PySpark and Py4J.
Python caches no bytecode for modules in an archive, so every worker would compile PySpark again,
which takes a second of CPU, although the same modules are installed. The script of `worker_python`
removes these archives from the path, and starts `worker_daemon` instead of PySpark's daemon.
`java` has a script of its own and installs it with `install`.

Called before a session starts, in the driver's process. Several processes may install the same
script at the same time.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyromq.base.atomic_file import write_file

_PYTHON_SCRIPT: Final = """\
#!/bin/sh
# Use the installed modules, which have bytecode, instead of Spark's archives.
set -f
path=
IFS=:
for part in $PYTHONPATH; do
    case $part in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) path=${{path:+$path:}}$part ;;
    esac
done
unset IFS
PYTHONPATH=$path
export PYTHONPATH
if [ "$1" = -m ] && [ "$2" = pyspark.daemon ]; then
    shift 2
    set -- -m pyromq.spark.runtime.worker_daemon "$@"
fi
exec {python} "$@"
"""


def worker_python(environment: Mapping[str, str]) -> str:
    """Return the path of a script that runs this interpreter; the same path for every call.

    PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON should both name it: Spark plans a source with the
    latter.
    """
    script = _PYTHON_SCRIPT.format(python=shlex.quote(sys.executable))
    directory = install(
        "python", script, environment, lambda path: write_script(path / "python", script)
    )
    return str(directory / "python")


def install(
    kind: str, script: str, environment: Mapping[str, str], fill: Callable[[Path], None]
) -> Path:
    """Return the directory for a script, after `fill(directory)` has written or repaired it.

    It is in the user's cache; or, if that is not writable, a temporary directory of this process
    that no other user can change.
    """
    name = f"{kind}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    directory = cache_directory(environment) / name
    try:
        fill(directory)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix=f"pyromq-{name}-"))
        fill(directory)
    return directory


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return pyromq's directory in the user's cache. It may not exist yet."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "pyromq"


def write_script(program: Path, content: str) -> None:
    """Write an executable file atomically, unless it already has this content."""
    if program.is_file() and program.read_text() == content:
        return
    # A name of this process: others may be writing the same program.
    own = program.with_name(f"{program.name}.{os.getpid()}")
    write_file(own, content.encode(), mode=0o755)
    own.replace(program)
