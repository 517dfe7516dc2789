"""Build Spark sessions with suitable settings for reading and writing messages.

    spark = build_session()                              # this machine, all of its cores
    spark = build_session("spark://host:7077", conf={"spark.executor.memory": "4g"})

Without a master the session runs on this machine and retries a task whose Python worker died
(`local[*,4]`; plain `local[*]` does not retry). A local session gets only the settings it needs. A
cluster gets only those that make the source fast; the rest is up to its users. The caller's
`conf` overrides all of them. The jobs use this; the format "rocketmq" works in any other session
as well.

Called on the main thread. A process has one session: if there already is one, PySpark returns it
and applies the settings that can still change.
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
from pyromq.spark.runtime.launchers import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: All cores, four attempts per task.
LOCAL_MASTER: Final = "local[*,4]"
REMOTE_PREFIX: Final = "sc://"

#: Rows per batch between Python and the JVM.
ARROW_BATCH_ROWS: Final = 8192

#: For every master: settings that make the source faster.
_FAST: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
}
#: For this machine: no open ports, no web UI, no progress bar.
_LOCAL: Final = {
    # Half the cost of loopback TCP between the JVM and Python.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_SETTING: Final = "-Dlog4j2.configurationFile="
#: Errors only, from the start: `spark.log.level` takes effect after Spark's start-up messages.
_LOG_CONFIGURATION: Final = Path(__file__).with_name("log4j2.properties")


def build_session(
    master: str | None = None,
    *,
    app_name: str = "pyromq",
    conf: Mapping[str, str] | None = None,
    is_quiet: bool = False,
) -> SparkSession:
    """Return the session of this process, created if there is none. Raises JavaNotFoundError.

    `master` is Spark's (`local[4]`, `spark://host:7077`, `yarn`, ...), or the address of a
    Spark Connect server (`sc://host:15002`). Under `spark-submit`, or with SPARK_REMOTE set,
    None selects the master given there. `is_quiet` starts Java without any output, and without
    its vector module, which only machine learning uses.
    """
    from pyspark.sql import SparkSession

    settings = session_settings(master, conf)
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if "spark.remote" not in settings and not _is_given_elsewhere():
        provide_java(with_module=not is_quiet)
    if _is_local(settings.get("spark.master", "")):
        # Workers need the packages of this interpreter: pyromq, pyarrow.
        python = worker_python(os.environ)
        os.environ.setdefault("PYSPARK_PYTHON", python)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    return builder.getOrCreate()


def session_settings(master: str | None, conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of a session with this master, including the caller's `conf`."""
    own = dict(conf or {})
    if master is None and not _is_given_elsewhere():
        master = own.get("spark.master", LOCAL_MASTER)
    settings = dict(_FAST)
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
    """Add our log configuration to the user's Java options, unless they have their own."""
    if _LOG_SETTING in java_options:
        return java_options
    return f"{java_options} {_LOG_SETTING}{_LOG_CONFIGURATION.as_uri()}".strip()


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _is_given_elsewhere() -> bool:
    """Return whether spark-submit or SPARK_REMOTE determines the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
