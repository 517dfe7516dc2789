"""Spark sessions with the settings that reading and writing messages wants.

    spark = build_session()                              # this machine, all of its cores
    spark = build_session("spark://host:7077", conf={"spark.executor.memory": "4g"})

Without a master the session runs on this machine, and a task whose Python worker is lost is
tried again (`local[*,4]`; plain `local[*]` gives up at once). What is set for a local session
is the least that it needs; a cluster's settings are its users' business, beside the few that
make the source quick. A user's own `conf` goes before all of them. Used by the jobs; plain
sessions read and write the format "rocketmq" as well.

Called on the main thread. The one session of a process is shared, as PySpark has it: with a
session already there, that one is returned, with the settings that can still change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from pyromq.spark.reading.push_down import CONF as PUSH_DOWN
from pyromq.spark.reading.push_down import is_safe
from pyromq.spark.runtime.java import provide_java
from pyromq.spark.runtime.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: All cores, and four attempts for each task.
LOCAL_MASTER: Final = "local[*,4]"
REMOTE_PREFIX: Final = "sc://"

#: Rows of a batch between Python and the JVM.
ARROW_BATCH_ROWS: Final = 8192

#: For every master: what the source is quicker with.
_QUICK: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
}
#: For this machine: no ports for others, no page of its own, no chatter.
_LOCAL: Final = {
    # Half the cost of a loopback connection for what goes between the JVM and Python.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_SETTING: Final = "-Dlog4j2.configurationFile="
#: Errors only, from the first line on: `spark.log.level` comes after what a start has to say.
_LOG_CONFIGURATION: Final = Path(__file__).with_name("log4j2.properties")


def build_session(
    master: str | None = None,
    *,
    app_name: str = "pyromq",
    conf: Mapping[str, str] | None = None,
    is_quiet: bool = False,
) -> SparkSession:
    """The session of this process, made if there is none. Raises JavaNotFoundError.

    `master` is Spark's (`local[4]`, `spark://host:7077`, `yarn`, ...), or the address of a
    Spark Connect server (`sc://host:15002`). Under `spark-submit`, or with SPARK_REMOTE set,
    None means what was said there. `is_quiet`: Java starts without a word, and without its
    module of vectors, which only machine learning uses.
    """
    from pyspark.sql import SparkSession

    settings = session_settings(master, conf)
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if "spark.remote" not in settings and not _is_given_elsewhere():
        provide_java(with_module=not is_quiet)
    if _is_local(settings.get("spark.master", "")):
        # Workers must find what this interpreter finds: pyromq, pyarrow.
        python = worker_python(os.environ)
        os.environ.setdefault("PYSPARK_PYTHON", python)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    return builder.getOrCreate()


def session_settings(master: str | None, conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a session of this master is told, the user's own `conf` included."""
    own = dict(conf or {})
    if master is None and not _is_given_elsewhere():
        master = own.get("spark.master", LOCAL_MASTER)
    settings = dict(_QUICK)
    if is_safe(pyspark.__version__):
        settings[PUSH_DOWN] = "true"
    if master is not None and master.startswith(REMOTE_PREFIX):
        settings["spark.remote"] = master
    elif master is not None:
        if _is_local(master):
            settings |= _LOCAL
            own[_JAVA_OPTIONS] = _quiet(own.get(_JAVA_OPTIONS, ""))
        settings["spark.master"] = master
    return settings | {key: value for key, value in own.items() if key != "spark.master"}


def _quiet(java_options: str) -> str:
    """The user's options of Java, and ours about the log, unless they have one."""
    if _LOG_SETTING in java_options:
        return java_options
    return f"{java_options} {_LOG_SETTING}{_LOG_CONFIGURATION.as_uri()}".strip()


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _is_given_elsewhere() -> bool:
    """Whether spark-submit started this process, or a Spark Connect server is named."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
