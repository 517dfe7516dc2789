from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.acl.administration import (
    AccountChange,
    AclAdministration,
    AdministrationError,
    split_addresses,
    split_permissions,
)
from pyromq.acl.files import AclFileError, AclFiles, read_data
from pyromq.acl.reload import AclStore
from pyromq.acl.rules import FileVersion, Permission
from tests.support.access import write_accounts

NEW = AccountChange("carol_key", "carol_secret", topic_perms=["T=PUB"], default_group_perm="SUB")


class Setup:
    def __init__(self, home: Path, *, strict: bool = False) -> None:
        self.path = write_accounts(home)
        self.files = AclFiles(home, strict=strict)
        self.store = AclStore(self.files)
        self.store.load()
        self.accounts = AclAdministration(self.store, clock=lambda: 1_700_000_000_000)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


async def test_a_new_account_counts_at_once(setup: Setup) -> None:
    await setup.accounts.update_account(NEW)
    account = setup.store.rules.accounts["carol_key"]
    assert account.resources == {"T": Permission.PUB}
    assert account.default_group == Permission.SUB
    assert setup.accounts.default_version() == FileVersion(1, 1_700_000_000_000)
    assert read_data(setup.path)["accounts"][-1]["accessKey"] == "carol_key"


async def test_a_change_keeps_what_it_does_not_name_but_admin(setup: Setup) -> None:
    await setup.accounts.update_account(AccountChange("alice_key", "other_secret"))
    account = setup.store.rules.accounts["alice_key"]
    assert account.secret_key == "other_secret"
    assert account.resources["T"] == Permission.PUB | Permission.SUB
    await setup.accounts.update_account(AccountChange("admin_key", "admin_secret"))
    assert not setup.store.rules.accounts["admin_key"].is_admin
    assert setup.accounts.default_version().counter == 2
    assert [each["accessKey"] for each in read_data(setup.path)["accounts"]] == [
        "bobby_key",
        "peers_key",
        "alice_key",
        "admin_key",
    ]
    await setup.accounts.update_account(AccountChange("peers_key", "other_secret"))
    assert setup.store.rules.accounts["peers_key"].is_peer


async def test_a_deleted_account_is_gone_at_once(setup: Setup) -> None:
    await setup.accounts.delete_account("bobby_key")
    assert "bobby_key" not in setup.store.rules.accounts
    with pytest.raises(AdministrationError, match="unknown accessKey"):
        await setup.accounts.delete_account("bobby_key")


async def test_an_account_of_another_file_stays_there(setup: Setup, tmp_path: Path) -> None:
    other = tmp_path / "conf/acl/more.yml"
    other.parent.mkdir()
    other.write_text("accounts:\n- {accessKey: carol_key, secretKey: carol_secret}\n")
    await setup.store.poll()
    await setup.accounts.update_account(NEW)
    assert read_data(other)["accounts"][0]["topicPerms"] == ["T=PUB"]
    assert str(other) in setup.accounts.versions()


async def test_white_lists(setup: Setup, tmp_path: Path) -> None:
    await setup.accounts.update_white_list("10.0.0.1,192.168.0.{1,2}", None)
    assert read_data(setup.path)["globalWhiteRemoteAddresses"] == ["10.0.0.1", "192.168.0.{1,2}"]
    assert setup.store.rules.is_white("192.168.0.2")
    await setup.accounts.update_white_list("10.0.0.9", str(setup.path))
    assert not setup.store.rules.is_white("10.0.0.1")
    before = setup.path.read_bytes()
    with pytest.raises(AclFileError, match="not an IP address"):
        await setup.accounts.update_white_list("nonsense", None)
    foreign = tmp_path / "foreign.yml"
    foreign.touch()
    for path in (str(foreign), "/etc/passwd", f"{tmp_path}/conf/../conf/plain_acl.yml"):
        with pytest.raises(AdministrationError, match="not a file of access control"):
            await setup.accounts.update_white_list("10.0.0.1", path)
    assert setup.path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        AccountChange("short", "long_enough"),
        AccountChange("long_enough", "short"),
        AccountChange("long_enough"),
        AccountChange("long_enough", "long_enough", default_topic_perm="ANY"),
        AccountChange("long_enough", "long_enough", topic_perms=["T"]),
        AccountChange("long_enough", "long_enough", group_perms=["g=PUB | SUB"]),
    ],
)
async def test_bad_changes_are_refused(setup: Setup, change: AccountChange) -> None:
    before = setup.path.read_bytes()
    with pytest.raises(AdministrationError):
        await setup.accounts.update_account(change)
    assert setup.path.read_bytes() == before


async def test_a_refusal_has_no_secret(setup: Setup) -> None:
    change = AccountChange("short", "carol_secret")
    with pytest.raises(AdministrationError) as caught:
        await setup.accounts.update_account(change)
    assert "carol_secret" not in f"{caught.value} {change!r}"


async def test_the_last_administrator_stays_in_strict_mode(tmp_path: Path) -> None:
    strict = Setup(tmp_path, strict=True)
    with pytest.raises(AdministrationError, match="last administrator"):
        await strict.accounts.delete_account("admin_key")
    with pytest.raises(AdministrationError, match="last administrator"):
        await strict.accounts.update_account(AccountChange("admin_key", "admin_secret"))
    await strict.accounts.update_account(AccountChange("second_key", "second_secret", admin=True))
    await strict.accounts.delete_account("admin_key")


async def test_accounts_are_shown_with_or_without_secrets(setup: Setup) -> None:
    white, accounts = await setup.accounts.shown(with_secrets=True)
    assert white == []
    assert accounts[1] == {
        "accessKey": "alice_key",
        "admin": False,
        "groupPerms": ["g=SUB"],
        "secretKey": "alice_secret",
        "topicPerms": ["T=PUB|SUB", "P=PUB"],
    }
    _, masked = await setup.accounts.shown(with_secrets=False)
    assert {account["secretKey"] for account in masked} == {"******"}


async def test_a_missing_default_file_is_created(tmp_path: Path) -> None:
    store = AclStore(AclFiles(tmp_path))
    store.load()
    await AclAdministration(store).update_account(NEW)
    assert list(store.rules.accounts) == ["carol_key"]


def test_lists_of_requests() -> None:
    assert split_addresses("a,b.{1,2},,c") == ["a", "b.{1,2}", "c"]
    assert split_permissions("a=PUB,b=SUB") == ["a=PUB", "b=SUB"]
    assert split_permissions("") == []
    assert split_permissions(None) is None
