"""PySpark's daemon, which forks the Python workers of a machine, without its false alarms.

When Spark has all rows that it wants (`limit`, `take`), or the answer of a process that plans a
source, it closes its end of the socket. PySpark's daemon prints a traceback for that
BrokenPipeError, into the output of whatever command made the session. Here it says nothing
about it; everything else is PySpark's.

Started by the script of `worker_python`, for sessions on this machine (the setting
`spark.python.daemon.module` does not reach the processes that plan). Imports little: nothing may
start a thread before the forks.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace
from typing import Final

from pyspark import daemon

#: Raised when Spark wants no more.
_EXPECTED: Final = (BrokenPipeError, ConnectionResetError)


def main() -> None:
    """Run PySpark's daemon."""
    daemon.traceback = SimpleNamespace(  # type: ignore[assignment,attr-defined]
        print_exc=print_unexpected, format_exc=traceback.format_exc
    )
    daemon.manager()


def print_unexpected() -> None:
    """Print the traceback of the error at hand, unless Spark has merely had enough."""
    if not isinstance(sys.exception(), _EXPECTED):
        traceback.print_exc()


if __name__ == "__main__":
    main()
