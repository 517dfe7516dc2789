"""Run PySpark's daemon, which forks the Python workers of a machine, without its false alarms.

When Spark has all the rows it wants (`limit`, `take`), or the response of a process that plans a
source, it closes its end of the socket. PySpark's daemon then prints a traceback for the
BrokenPipeError into the output of the command that started the session. This one stays silent;
everything else is PySpark's.

Started by the script in `launchers`, for sessions on this machine; the setting
`spark.python.daemon.module` does not reach the processes that plan. It imports little, because
nothing may start a thread before the forks.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace
from typing import Final

from pyspark import daemon

#: Raised when Spark closes its end.
_EXPECTED: Final = (BrokenPipeError, ConnectionResetError)


def main() -> None:
    """Run PySpark's daemon."""
    daemon.traceback = SimpleNamespace(  # type: ignore[assignment,attr-defined]
        print_exc=print_unexpected, format_exc=traceback.format_exc
    )
    daemon.manager()


def print_unexpected() -> None:
    """Print the current exception's traceback, unless Spark merely closed its end."""
    if not isinstance(sys.exception(), _EXPECTED):
        traceback.print_exc()


if __name__ == "__main__":
    main()
