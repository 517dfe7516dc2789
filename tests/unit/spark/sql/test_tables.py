"""What needs no engine; the rest is in tests/spark/test_sql.py."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from pyromq.spark.sql.tables import TopicTables, missing_table, short_error


class Failure(AnalysisException):
    """As Spark raises it."""

    def __init__(self, text: str, condition: str, **parameters: str) -> None:
        super().__init__(text)
        self._condition_name = condition
        self._parameters = parameters

    def getCondition(self) -> str:  # noqa: N802 - Spark's
        return self._condition_name

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802 - Spark's
        return self._parameters

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else str(self._message)


@pytest.mark.parametrize(
    ("condition", "name", "expected"),
    [
        ("TABLE_OR_VIEW_NOT_FOUND", "`Orders`", "Orders"),
        ("TABLE_OR_VIEW_NOT_FOUND", "`%DLQ%a|b`", "%DLQ%a|b"),
        ("TABLE_OR_VIEW_NOT_FOUND", "`a`.`b`", None),
        ("UNRESOLVED_COLUMN", "`Orders`", None),
    ],
)
def test_the_table_that_is_missing(condition: str, name: str, expected: str | None) -> None:
    assert missing_table(Failure("no", condition, relationName=name)) == expected


class Session:
    """Knows the views that were made."""

    def __init__(self) -> None:
        self.views: list[str] = []
        self.made: list[list[tuple[str]]] = []

    def sql(self, statement: str) -> Any:
        dropped = re.fullmatch("drop view if exists `(.*)`", statement)
        if dropped is not None:
            self.views.remove(dropped[1])
            return None
        logging.getLogger("SQLQueryContextLogger").error("as PySpark says it")
        _, _, name = statement.partition(" from ")
        if name.lower() not in [view.lower() for view in self.views]:
            raise Failure("not found", "TABLE_OR_VIEW_NOT_FOUND", relationName=f"`{name}`")
        return type("Frame", (), {"schema": None})()

    def createDataFrame(self, rows: Any, _: str) -> Any:  # noqa: N802 - Spark's
        self.made.append(rows)
        return rows


def tables_of(session: Session, topics: list[str]) -> TopicTables:
    anything: Any = session
    tables = TopicTables(anything, {"nameserver": "a:1"}, lambda: topics)

    def make_view(topic: str, **_: str) -> None:
        session.views.append(topic)
        tables._views.add(topic)

    tables._make_view = make_view  # type: ignore[method-assign]
    return tables


def test_a_topic_is_a_table_when_it_is_named(caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    tables = tables_of(session, ["Orders", "orders", "Payments"])
    tables.run("select 1 from Orders")
    assert session.views == ["Orders"]
    tables.run("select 1 from PAYMENTS")
    assert session.views == ["Payments"], "a view is for one statement"
    tables.close()
    assert session.views == []
    assert caplog.text == "", "a statement that fails at first is nobody's business"


def test_what_is_no_topic_is_spark_s_error() -> None:
    tables = tables_of(Session(), ["Orders"])
    with pytest.raises(AnalysisException, match="not found"):
        tables.run("select 1 from Nothing")


def test_a_view_that_does_not_help_is_made_once() -> None:
    class Stubborn(Session):
        def sql(self, statement: str) -> Any:
            raise Failure("not found", "TABLE_OR_VIEW_NOT_FOUND", relationName="`Orders`")

    session = Stubborn()
    with pytest.raises(AnalysisException, match="not found"):
        tables_of(session, ["Orders"]).run("select 1 from Orders")
    assert session.views == ["Orders"]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("show topics", ["Orders", "Orders_2", "payments"]),
        ("SHOW TABLES", ["Orders", "Orders_2", "payments"]),
        ("show topics like 'Ord%'", ["Orders", "Orders_2"]),
        ("show tables like 'PAY*'", ["payments"]),
        ("show topics like 'Orders__'", ["Orders_2"]),
    ],
)
def test_topics_are_listed(statement: str, expected: list[str]) -> None:
    session = Session()
    tables_of(session, ["payments", "Orders", "Orders_2"]).run(statement)
    assert session.made == [[(topic,) for topic in expected]]


def test_errors_are_short() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `nam` cannot be resolved. "
        "SQLSTATE: 42703; line 1 pos 7;\n'Project ['nam]\n+- SubqueryAlias t\n   +- View (`t`)\n"
        "\nJVM stacktrace:\n\tat org.apache.spark.sql.x(y.scala:1)\n"
    )
    assert short_error(PySparkException(text)) == (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `nam` cannot be resolved. "
        "SQLSTATE: 42703; line 1 pos 7"
    )


def test_a_parser_s_pointer_is_kept() -> None:
    text = "\n[PARSE_SYNTAX_ERROR] Syntax error at 'x'. (line 1)\n\n== SQL ==\nx 1\n^^^\n"
    assert short_error(PySparkException(text)).splitlines()[1:] == ["== SQL ==", "x 1", "^^^"]


def test_of_a_traceback_the_reason_is_shown() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "pyromq.spark.options.OptionError: there is no option 'x'\n\nDuring handling:\n"
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [WRAPPED] worse\n"
    )
    assert short_error(PySparkException(text)) == "OptionError: there is no option 'x'"
