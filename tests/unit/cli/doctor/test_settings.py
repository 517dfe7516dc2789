from __future__ import annotations

import time
from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner

from pyromq.base.settings import ConfigError
from pyromq.cli.doctor.finding import Finding, Level
from pyromq.cli.doctor.settings import bad_settings, examine_settings, load_settings_file
from pyromq.cli.main import main
from tests.support.certificates import Certificates


def examine(path: Path, text: str, now: float | None = None) -> dict[str, Finding]:
    path.write_text(text)
    loaded = load_settings_file(path)
    return {each.check: each for each in examine_settings(path, loaded, now)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.properties"


def test_a_valid_file(path: Path) -> None:
    found = examine(path, "brokerName=a\n")
    assert {check: each.level for check, each in found.items()} == {"settings": Level.OK}


def test_a_setting_without_effect_and_an_unknown_one(path: Path) -> None:
    found = examine(path, "brokerNmae=a\n")
    assert found["settings"].level is Level.WARN
    assert "brokerNmae" in found["settings"].what


@pytest.mark.parametrize("text", ["listenPort=many\n", "flushDiskType=SOMETIMES\n"])
def test_a_file_that_does_not_load(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises((ConfigError, ClickException)) as caught:
        load_settings_file(path)
    finding = bad_settings(path, caught.value)
    assert finding.level is Level.FAIL
    assert text.partition("=")[0] in finding.what
    assert str(path) in finding.what


@pytest.mark.parametrize(("days", "level"), [(0, Level.OK), (25, Level.WARN), (31, Level.FAIL)])
def test_certificates(tmp_path: Path, path: Path, days: int, level: Level) -> None:
    made = Certificates(tmp_path / "certificates")
    text = (
        "tls.server.mode=enforcing\ntls.enable=false\n"
        f"tls.server.certPath={made['server.pem']}\ntls.server.keyPath={made['server.key']}\n"
    )
    found = examine(path, text, now=time.time() + days * 24 * 3600)
    assert found["certificate"].level is level
    assert "valid until" in found["certificate"].what


def test_a_certificate_that_cannot_be_loaded(tmp_path: Path, path: Path) -> None:
    text = "tls.server.mode=enforcing\ntls.enable=false\n"
    text += f"tls.server.certPath={tmp_path}/x\ntls.server.keyPath={tmp_path}/y\n"
    assert examine(path, text)["certificate"].level is Level.FAIL


def test_files_of_access_control(tmp_path: Path, path: Path) -> None:
    home = tmp_path / "home"
    assert CliRunner().invoke(main, ["acl", "init", str(home)]).exit_code == 0
    text = f"aclEnable=true\nrocketmqHome={home}\n"
    found = examine(path, text)["access control"]
    assert (found.level, found.what) == (Level.OK, "3 accounts")
    (home / "conf/plain_acl.yml").chmod(0o644)
    found = examine(path, text)["access control"]
    assert found.level is Level.WARN
    assert "0644" in found.what
    (home / "conf/plain_acl.yml").write_text("accounts: [")
    assert examine(path, text)["access control"].level is Level.FAIL
