"""Offer topics as tables of a session: each becomes a view when a statement names it.

    tables = TopicTables(session, {"nameserver": "localhost:9876"}, origin.topics)
    tables.run("select count(*) from Orders").show()
    tables.run("select * from `%DLQ%billing` where body_text like '%timeout%'")

A view has all columns of the source, with `properties` as a map, and `body_text`, the body as
UTF-8 text. Views live for one statement: Spark plans the end of a read once and keeps it with the
view, while each statement must see the latest messages. If a statement reads a single topic, its
conditions on queues, offsets, times and tags become the option `where`. A cluster may have tens of
thousands of topics: none is read before a statement names it. Called in the driver.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as sql

from pyromq.spark.reading.conditions import options_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FAILURE_LOG: Final = "SQLQueryContextLogger"
_SCAN: Final = "DataSourceV2ScanRelation"
_MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"
_SHOW_TOPICS: Final = re.compile(
    r"\s*show\s+(?:topics|tables)(?:\s+like\s+'([^']*)')?\s*", re.IGNORECASE
)
#: Lines of Spark's error messages that belong to plans and stack traces.
_NOISE: Final = re.compile(r"^\s*(?:'|\+-|:-|at (?:org|java|scala|jdk|py4j)\b|JVM stacktrace|;)")
_MAX_ERROR_LINES: Final = 10


class TopicTables:
    """The topics of a cluster as tables of a session.

    `read_options` are options of the format "rocketmq" for every table; `topics` lists the names.
    """

    def __init__(
        self,
        session: SparkSession,
        read_options: Mapping[str, str],
        topics: Callable[[], Sequence[str]],
    ) -> None:
        self._session = session
        self._read_options = {"includeProperties": "map", **read_options}
        self._topics = topics
        self._views: set[str] = set()

    def run(self, statement: str) -> DataFrame:
        """Run a statement and return its result. Raises PySparkException."""
        self.close()
        shown = _SHOW_TOPICS.fullmatch(statement)
        if shown is not None:
            return self._show(shown[1])
        while True:
            try:
                with _quiet_failures():
                    frame = self._session.sql(statement)
                    frame.schema  # noqa: B018 - Spark Connect analyses a statement only now
            except AnalysisException as error:
                name = missing_table(error)
                topic = self._topic_of(name) if name is not None else None
                if topic is None:
                    raise
                self._make_view(topic)
            else:
                return self._narrowed(statement, frame)

    def close(self) -> None:
        """Drop the views."""
        for topic in self._views:
            self._session.sql(f"drop view if exists `{topic}`")
        self._views.clear()

    def _show(self, like: str | None) -> DataFrame:
        topics = sorted(self._topics())
        if like is not None:
            pattern = re.escape(like).replace("%", ".*").replace(r"\*", ".*").replace("_", ".")
            topics = [topic for topic in topics if re.fullmatch(pattern, topic, re.IGNORECASE)]
        return self._session.createDataFrame([(topic,) for topic in topics], "topic string")

    def _topic_of(self, name: str) -> str | None:
        """Return the topic for a table name, ignoring case; None if no further view can help."""
        found = sorted(topic for topic in self._topics() if topic.lower() == name.lower())
        best = name if name in found else (found[0] if found else None)
        return None if best in self._views else best

    def _narrowed(self, statement: str, frame: DataFrame) -> DataFrame:
        """Return the result from a view that reads less, if the statement's conditions allow it."""
        condition = scan_condition(frame) if len(self._views) == 1 else None
        if condition is None:
            return frame
        zone = self._session.conf.get("spark.sql.session.timeZone")
        options = options_for(condition, time_zone=zone, qualified=True).options
        if not options:
            return frame
        own = self._read_options.get("where")
        if own is not None:
            options["where"] += f" AND {own}"
        (topic,) = self._views
        self._make_view(topic, **options)
        return self._session.sql(statement)

    def _make_view(self, topic: str, **options: str) -> None:
        reader = self._session.read.format("rocketmq").options(**self._read_options | options)
        frame = reader.option("subscribe", topic).load()
        frame = frame.withColumn("body_text", sql.col("body").cast("string"))
        frame.createOrReplaceTempView(f"`{topic}`")
        self._views.add(topic)


@contextmanager
def _quiet_failures() -> Iterator[None]:
    """Stop PySpark from logging failed statements: a failure tells which topic is missing."""
    log = logging.getLogger(_FAILURE_LOG)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def scan_condition(frame: DataFrame) -> str | None:
    """Return the condition that Spark's optimizer applies to each row right after reading it.

    None if it is unknown: the statement does not read exactly one table, the session is Spark
    Connect, or the statement was a command, which has run already.
    """
    try:
        plan = frame._jdf.queryExecution().optimizedPlan()
        leaves = plan.collectLeaves()
        if leaves.size() != 1 or leaves.apply(0).nodeName() != _SCAN:
            return None
        if not plan.subqueriesAll().isEmpty():
            return None
        while plan.children().size() == 1:
            below = plan.children().apply(0)
            if plan.nodeName() == "Filter" and below.children().isEmpty():
                return str(plan.condition().sql())
            plan = below
    except (AttributeError, PySparkException, Py4JError):
        return None
    return None


def missing_table(error: AnalysisException) -> str | None:
    """Return the table that does not exist; None if the statement failed for another reason."""
    if error.getCondition() != _MISSING:
        return None
    name = (error.getMessageParameters() or {}).get("relationName", "")
    found = re.fullmatch(r"`((?:[^`]|``)*)`", name)
    return found[1].replace("``", "`") if found is not None else None


def short_error(error: PySparkException) -> str:
    """Return Spark's error message without plans and stack traces."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        # Raised by a task or planner of ours: take the exception, which follows the stack.
        python = [
            line.strip()
            for line in text.splitlines()
            if re.match(r"\s*(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception): ", line)
        ]
        own = [line for line in python if line.startswith("pyromq.")] or python
        if own:
            return re.sub(r"^(?:\w+\.)+", "", own[-1])
    lines = [line for line in text.splitlines() if line.strip() and not _NOISE.match(line)]
    return "\n".join(lines[:_MAX_ERROR_LINES]).rstrip("; ")
