from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from pyromq.acl import files as files_module
from pyromq.acl.files import AclFileError, AclFiles, MissingYamlError, read_data
from pyromq.acl.rules import FileVersion, Permission, group_resource

RULES = """\
# a comment
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  admin: true
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  - groupB=SUB
- accessKey: second_key
  secretKey: second_secret
dataVersion:
- counter: 3
  timestamp: 1700000000000
"""


def write(home: Path, text: str, name: str = "conf/plain_acl.yml", mode: int = 0o600) -> Path:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def fault(home: Path, text: str, *, strict: bool = False) -> str:
    write(home, text)
    with pytest.raises(AclFileError) as caught:
        AclFiles(home, strict=strict).load()
    return str(caught.value)


def account(**fields: str) -> str:
    lines = {"accessKey": "alice_key", "secretKey": "alice_secret", **fields}
    head, *rest = (f"{name}: {value}" for name, value in lines.items())
    return "\n".join(["accounts:", f"- {head}", *(f"  {line}" for line in rest), ""])


def test_a_whole_file(tmp_path: Path) -> None:
    path = write(tmp_path, RULES)
    rules = AclFiles(tmp_path).load()
    first, second = rules.accounts.values()
    assert (first.access_key, first.secret_key) == ("rocketmq2", "12345678")
    assert first.is_admin
    assert (first.default_topic, first.default_group) == (Permission.DENY, Permission.SUB)
    assert first.resources == {
        "topicA": Permission.DENY,
        "topicB": Permission.PUB | Permission.SUB,
        group_resource("groupB"): Permission.SUB,
    }
    assert first.white.text == "192.168.1.*"
    assert (second.default_topic, second.is_admin) == (Permission.DENY, False)
    assert second.white.is_blank
    assert rules.is_white("10.10.103.7")
    assert rules.files == {str(path): FileVersion(3, 1700000000000)}
    assert rules.warnings == ()


def test_no_files_are_no_accounts(tmp_path: Path) -> None:
    rules = AclFiles(tmp_path).load()
    assert (rules.accounts, rules.files) == ({}, {})


def test_an_empty_file_is_warned_about(tmp_path: Path) -> None:
    write(tmp_path, "# nothing\n")
    assert "is empty" in AclFiles(tmp_path).load().warnings[0]


def test_files_of_the_folder_come_first(tmp_path: Path) -> None:
    write(tmp_path, account(admin="true"))
    write(tmp_path, account(defaultTopicPerm="PUB"), "conf/acl/deep/more.yaml")
    write(tmp_path, "not read", "conf/acl/notes.txt")
    rules = AclFiles(tmp_path).load()
    assert rules.accounts["alice_key"].default_topic == Permission.PUB
    assert not rules.accounts["alice_key"].is_admin
    assert any("alice_key occurs again" in warning for warning in rules.warnings)


def test_keys_may_be_merged_from_an_anchor(tmp_path: Path) -> None:
    text = (
        "accounts:\n- &base {accessKey: alice_key, secretKey: alice_secret, admin: true}\n"
        "- <<: *base\n  accessKey: other_key\n"
    )
    write(tmp_path, text)
    assert AclFiles(tmp_path).load().accounts["other_key"].is_admin


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("accounts: }", 1, "not YAML"),
        ("accounts:\n\t- x", 2, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("- x\n", 1, "expected a map"),
        ("accounts: 5\n", 1, "expected a list"),
        ("accounts:\n- 5\n", 2, "expected a map"),
        (account(accessKey="short"), 2, "accessKey needs at least 7"),
        (account(secretKey="short"), 3, "secretKey needs at least 7"),
        (account(secretKey="[a, b]"), 3, "expected a single value"),
        (account(secretKey="2001-01-01"), 3, "put the value in quotes"),
        (account(admin="maybe"), 4, "true or false"),
        (account(peer="maybe"), 4, "peer: expected true or false"),
        (account(topicPerms="[a]"), 4, "not name=PERMISSION"),
        (account(topicPerms="[a=PUB=SUB]"), 4, "not name=PERMISSION"),
        (account(whiteRemoteAddress="localhost"), 4, "not an IP address"),
        ("globalWhiteRemoteAddresses:\n- 1.1.1.1\n- nonsense\n", 3, "not an IP address"),
        ("dataVersion:\n- counter: x\n  timestamp: 1\n", 2, "both numbers"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    found = fault(tmp_path, text)
    assert found.startswith(f"{tmp_path}/conf/plain_acl.yml:{line}: ")
    assert reason in found


def test_errors_have_no_secrets(tmp_path: Path) -> None:
    for text in (account(secretKey="geheim"), account(secretKey="'geheim: x: ["), "x: {geheim"):
        assert "geheim" not in fault(tmp_path, text)


def test_unknown_words_deny_unless_strict(tmp_path: Path) -> None:
    text = account(defaultTopicPerm="PUB | SUB", topicPerms="[a=ANY]", groupPerms="[g==SUB]")
    write(tmp_path, text)
    rules = AclFiles(tmp_path).load()
    loaded = rules.accounts["alice_key"]
    assert loaded.default_topic == loaded.resources["a"] == Permission.DENY
    assert loaded.resources[group_resource("g")] == Permission.SUB
    assert len(rules.warnings) == 2
    assert "plain_acl.yml:6" in fault(tmp_path, text, strict=True)
    assert "plain_acl.yml:4" in fault(tmp_path, account(defaultTopicPerm="ANY"), strict=True)


@pytest.mark.parametrize(
    "text",
    [account(topicPerm="[a=PUB]"), "account: []\n", "accounts: []\naccounts: []\n"],
)
def test_strict_mode_refuses_what_compatible_mode_warns_about(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    assert len(AclFiles(tmp_path).load().warnings) == 1
    fault(tmp_path, text, strict=True)


def test_a_file_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    write(tmp_path, RULES, mode=0o640)
    assert "chmod 600" in AclFiles(tmp_path).load().warnings[0]


def test_a_rewrite_is_atomic_and_keeps_mode_and_backup(tmp_path: Path) -> None:
    path = write(tmp_path, RULES)
    files = AclFiles(tmp_path)
    data = read_data(path)
    data["accounts"][1]["admin"] = True
    files.write(path, data)
    assert files.load().accounts["second_key"].is_admin
    assert list(read_data(path)) == ["globalWhiteRemoteAddresses", "accounts", "dataVersion"]
    assert (path.parent / "plain_acl.yml.bak").read_text() == RULES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert files.paths() == [path]


def test_a_rewrite_that_does_not_load_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, RULES)
    with pytest.raises(AclFileError, match="not an IP address"):
        AclFiles(tmp_path).write(path, {"globalWhiteRemoteAddresses": ["nonsense"]})
    assert path.read_text() == RULES
    assert os.listdir(path.parent) == ["plain_acl.yml"]


def test_a_new_file_is_private(tmp_path: Path) -> None:
    files = AclFiles(tmp_path)
    files.write(files.default, {"accounts": []})
    assert stat.S_IMODE(files.default.stat().st_mode) == 0o600


def test_stamps_change_with_a_file(tmp_path: Path) -> None:
    files = AclFiles(tmp_path)
    before = files.stamps()
    write(tmp_path, RULES)
    assert files.stamps() != before


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MAX_FILE_SIZE", 100)
    assert "limit 100" in fault(tmp_path, RULES)


def test_objects_are_not_built(tmp_path: Path) -> None:
    text = 'accounts:\n- accessKey: !!python/object/apply:os.system ["true"]\n'
    assert ":2:" in fault(tmp_path, text)


def test_without_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    write(tmp_path, RULES)
    with pytest.raises(MissingYamlError, match=r"pyromq\[acl\]"):
        AclFiles(tmp_path).load()


def test_a_secret_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE_SECRET", "from_outside")
    write(tmp_path, account(secretKey="${ALICE_SECRET}"))
    assert AclFiles(tmp_path).load().accounts["alice_key"].secret_key == "from_outside"
    monkeypatch.delenv("ALICE_SECRET")
    assert "ALICE_SECRET is not set" in fault(tmp_path, account(secretKey="${ALICE_SECRET}"))
