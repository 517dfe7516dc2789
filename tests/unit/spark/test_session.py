from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pyromq.spark import session
from pyromq.spark.reading.push_down import CONF
from pyromq.spark.session import session_settings

QUICK = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
}


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_master_it_is_this_machine_with_retries() -> None:
    settings = session_settings(None)
    assert settings["spark.master"] == "local[*,4]"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert QUICK.items() <= settings.items()


@pytest.mark.parametrize("master", ["local", "local[2,4]"])
def test_local_masters_are_local(master: str) -> None:
    assert session_settings(master) == session_settings(None) | {"spark.master": master}


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_a_cluster_keeps_its_settings(master: str) -> None:
    assert session_settings(master) == QUICK | {"spark.master": master}


def test_connect_is_remote() -> None:
    assert session_settings("sc://host:15002") == QUICK | {"spark.remote": "sc://host:15002"}


def test_user_settings_override_ours() -> None:
    own = {"spark.ui.enabled": "true", "spark.executor.memory": "4g"}
    settings = session_settings(None, own)
    assert own.items() <= settings.items()


def test_the_log_is_quiet_with_any_java_options() -> None:
    ((name, value),) = [
        item for item in session_settings("local").items() if "JavaOptions" in item[0]
    ]
    setting, _, uri = value.partition("=")
    assert setting == "-Dlog4j2.configurationFile"
    assert Path(urlsplit(uri).path).read_text().count("rootLogger.level = error") == 1
    assert session_settings("local", {name: "-Xss4m"})[name] == f"-Xss4m {value}"
    own = "-Dlog4j2.configurationFile=mine.xml"
    assert session_settings("local", {name: own})[name] == own


def test_push_down_stays_off_in_versions_with_the_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONF not in session_settings(None)
    assert session_settings(None, {CONF: "true"})[CONF] == "true"
    monkeypatch.setattr(session, "is_safe", lambda version: True)
    assert session_settings(None)[CONF] == "true"


def test_a_master_in_the_user_settings() -> None:
    conf = {"spark.master": "spark://host:7077"}
    assert session_settings(None, conf) == session_settings("spark://host:7077")
    assert session_settings("yarn", conf) == session_settings("yarn")


@pytest.mark.parametrize(
    ("name", "value"), [("PYSPARK_GATEWAY_PORT", "1234"), ("SPARK_REMOTE", "sc://host")]
)
def test_a_master_given_elsewhere_applies(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert session_settings(None) == QUICK
    assert session_settings("local[2]")["spark.master"] == "local[2]"
