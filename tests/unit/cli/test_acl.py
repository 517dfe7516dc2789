from __future__ import annotations

import stat
from pathlib import Path

from click.testing import CliRunner

from pyromq.acl.files import AclFiles, read_data
from pyromq.cli.acl import acl


def run(*words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(acl, words)
    assert (result.exit_code != 0) is fails, result.output
    return result.output


def test_new_files_are_strict_and_private(tmp_path: Path) -> None:
    output = run("init", str(tmp_path))
    files = AclFiles(tmp_path, strict=True)
    rules = files.load()
    assert rules.warnings == ()
    assert not rules.global_white
    assert rules.accounts["pyromq-admin"].is_admin
    assert not rules.accounts["example-app"].is_admin
    broker = rules.accounts["pyromq-broker"]
    assert (broker.is_peer, broker.is_admin) == (True, False)
    tools = read_data(tmp_path / "conf/tools.yml")
    assert tools["secretKey"] == rules.accounts["pyromq-admin"].secret_key
    for path in (files.default, tmp_path / "conf/tools.yml"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "aclMode=strict" in output
    assert not any(account.secret_key in output for account in rules.accounts.values())
    assert len({account.secret_key for account in rules.accounts.values()}) == 3


def test_existing_files_stay(tmp_path: Path) -> None:
    run("init", str(tmp_path))
    before = (tmp_path / "conf/plain_acl.yml").read_bytes()
    assert "--force" in run("init", str(tmp_path), fails=True)
    assert (tmp_path / "conf/plain_acl.yml").read_bytes() == before
    run("init", str(tmp_path), "--force")
    assert (tmp_path / "conf/plain_acl.yml.bak").read_bytes() == before


def test_check(tmp_path: Path) -> None:
    run("init", str(tmp_path))
    assert "3 accounts, 1 of them administrators, 1 peers" in run(
        "check", str(tmp_path), "--strict"
    )
    (tmp_path / "conf/plain_acl.yml").write_text("accounts: [")
    assert "plain_acl.yml:" in run("check", str(tmp_path), fails=True)
