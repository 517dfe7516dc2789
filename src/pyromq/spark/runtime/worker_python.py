"""The interpreter of Spark's Python processes: this one, without archives of Spark in its way.

Spark starts its workers with PYTHONPATH naming archives of PySpark and Py4J first. Python
reads no bytecode from an archive: every start of a worker compiles PySpark anew, which takes
a second of a core, for modules that are installed beside us anyway. So on this machine
workers are started by a script that takes these archives out of the way, and starts
`worker_daemon` instead of PySpark's daemon.

Called before a session is made, in the driver's process.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyromq.spark.runtime.scripts import cache_directory, write_script

_SCRIPT: Final = """\
#!/bin/sh
# The same modules are installed, with their bytecode.
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
    """A program that is this interpreter, for PYSPARK_PYTHON; the same one at every call.

    For PYSPARK_DRIVER_PYTHON, too: the processes that plan a source are started with that one.
    """
    script = _SCRIPT.format(python=shlex.quote(sys.executable))
    name = "python-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    try:
        directory = cache_directory(environment) / name
        write_script(directory / "python", script)
    except OSError:
        # A home that cannot be written: one for this process, which nobody else can change.
        directory = Path(tempfile.mkdtemp(prefix=f"pyromq-{name}-"))
        write_script(directory / "python", script)
    return str(directory / "python")
