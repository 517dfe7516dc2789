"""Run the archive job until a test kills it.

    python archive_driver.py NAMESERVER TOPIC DIRECTORY

Prints "ready" when its session is up, and starts when it reads a line. It exits when its input
ends, because its test has ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from pyromq.spark.archive.archiver import ArchiveOptions, run_archive
from pyromq.spark.options import Topics
from pyromq.spark.origins.broker import ConnectionSettings
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.session import build_session


def main(nameserver: str, topic: str, directory: str) -> None:
    session = build_session("local[2,4]", conf=json.loads(os.environ["ARCHIVE_TEST_CONF"]))
    session.range(2).rdd.map(lambda row: row).count()  # starts the workers
    print("ready", flush=True)  # noqa: T201
    if not sys.stdin.readline():
        return
    threading.Thread(target=end_with_the_test, daemon=True).start()
    # Small commits, so that kills hit all kinds of instants.
    options = ArchiveOptions(Topics((topic,)), max_records=500, tasks=2)
    source = BrokerSource(ConnectionSettings((nameserver,)))
    run_archive(session, source, directory, options, interval=0.01)


def end_with_the_test() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
