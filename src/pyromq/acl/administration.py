"""Changes of access control over the wire: accounts and white lists, written to the files.

Each change reads one file, changes it, checks it as a load would, replaces it atomically with a
backup, and loads all files again, so that it counts when its caller gets the answer. Changes run
one at a time (`AclStore.lock`). A change that would not load changes nothing.

Where RocketMQ differs: it writes without a check, it forgets the fields of an account that a change
does not name until the file is read again, and it tears `{a,b}` in white lists apart.

On the loop; files are handled on a thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyromq.acl import files
from pyromq.acl.files import AclFileError, read_data
from pyromq.acl.reload import AclStore
from pyromq.acl.rules import (
    KEY_MIN_LENGTH,
    PERMISSION_WORDS,
    FileVersion,
    parse_permission,
)
from pyromq.base.clock import Clock, now_ms
from pyromq.base.settings import MASK

_COMMAS: Final = re.compile(r",(?![^{]*\})")


class AdministrationError(ValueError):
    """A change that was refused; nothing was written."""


@dataclass(frozen=True, slots=True)
class AccountChange:
    """The fields of an account to create or to replace; None keeps a field as it is."""

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    #: Always replaced, as in RocketMQ.
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class AclAdministration:
    """Changes and shows the files of one server."""

    def __init__(self, store: AclStore, *, clock: Clock = now_ms) -> None:
        self._store = store
        self._files = store.files
        self._clock = clock

    async def update_account(self, change: AccountChange) -> None:
        """Create or change an account. Raises AdministrationError, AclFileError or OSError."""
        _check(change)

        def apply(data: dict[str, Any]) -> None:
            accounts = _accounts(data)
            account = _find(accounts, change.access_key)
            if account is None:
                account = {}
            else:
                accounts.remove(account)
            account.update(_fields(change))
            accounts.append(account)

        await self._change(lambda: self._file_of(change.access_key) or self._files.default, apply)

    async def delete_account(self, access_key: str) -> None:
        """Delete an account. Raises AdministrationError, AclFileError or OSError."""

        def find() -> Path:
            path = self._file_of(access_key)
            if path is None:
                raise AdministrationError("unknown accessKey")
            return path

        def apply(data: dict[str, Any]) -> None:
            accounts = _accounts(data)
            accounts[:] = [each for each in accounts if _key(each) != access_key]

        await self._change(find, apply)

    async def update_white_list(self, addresses: str, path: str | None) -> None:
        """Replace the global white list of a file, by default of the default file.

        Raises AdministrationError, AclFileError or OSError.
        """

        def find() -> Path:
            target = Path(path) if path else self._files.default
            if path and not self._files.holds(target):
                raise AdministrationError(f"{path} is not a file of access control")
            return target

        def apply(data: dict[str, Any]) -> None:
            data[files.GLOBAL_WHITE] = split_addresses(addresses)

        await self._change(find, apply)

    def versions(self) -> dict[str, FileVersion]:
        """Return the versions of the loaded files, by full path."""
        return self._store.rules.files

    def default_version(self) -> FileVersion:
        """Return the version of the default file."""
        return self._store.rules.files.get(str(self._files.default), FileVersion())

    async def shown(self, *, with_secrets: bool) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the global white list and the accounts as the files have them.

        Raises AclFileError or OSError.
        """
        return await asyncio.to_thread(self._read_all, with_secrets=with_secrets)

    def _read_all(self, *, with_secrets: bool) -> tuple[list[str], list[dict[str, Any]]]:
        white: list[str] = []
        accounts: dict[str, dict[str, Any]] = {}
        for path in self._files.paths():
            data = read_data(path)
            white += [str(each) for each in data.get(files.GLOBAL_WHITE) or ()]
            for account in data.get(files.ACCOUNTS) or ():
                accounts.setdefault(_key(account), _shown(account, with_secrets=with_secrets))
        return white, list(accounts.values())

    async def _change(
        self, find: Callable[[], Path], apply: Callable[[dict[str, Any]], None]
    ) -> None:
        async with self._store.lock:
            await asyncio.to_thread(self._rewrite, find, apply)
            await self._store.reload(force=True)

    def _rewrite(self, find: Callable[[], Path], apply: Callable[[dict[str, Any]], None]) -> None:
        path = find()
        data = read_data(path)
        apply(data)
        if self._files.strict:
            self._keep_an_administrator(path, data)
        data[files.DATA_VERSION] = [self._next_version(data)]
        self._files.write(path, data)

    def _keep_an_administrator(self, path: Path, data: dict[str, Any]) -> None:
        """Raise AdministrationError for a change that would leave nobody to undo it."""
        rules = self._store.rules
        if not any(account.is_admin for account in rules.accounts.values()):
            return
        others = [read_data(other) for other in self._files.paths() if other != path]
        if not any(
            account.get(files.ADMIN) for each in (data, *others) for account in _accounts(each)
        ):
            raise AdministrationError("the last administrator cannot be removed over the wire")

    def _next_version(self, data: dict[str, Any]) -> dict[str, int]:
        try:
            counter = int(data[files.DATA_VERSION][0]["counter"])
        except (KeyError, IndexError, TypeError, ValueError):
            counter = 0
        return {"counter": counter + 1, "timestamp": self._clock()}

    def _file_of(self, access_key: str) -> Path | None:
        """Return the file that an account comes from."""
        for path in self._files.paths():
            if _find(_accounts(read_data(path)), access_key) is not None:
                return path
        return None


def split_addresses(text: str) -> list[str]:
    """Split a white list at its commas, except those between braces."""
    return [each for each in _COMMAS.split(text) if each]


def split_permissions(text: str | None) -> list[str] | None:
    """Split a list of name=PERMISSION; None stays None."""
    return None if text is None else [each for each in text.split(",") if each]


def _check(change: AccountChange) -> None:
    if (
        len(change.access_key) < KEY_MIN_LENGTH
        or change.secret_key is None
        or len(change.secret_key) < KEY_MIN_LENGTH
    ):
        raise AdministrationError(
            f"The accessKey={change.access_key:.100} and secretKey={MASK} cannot be null and "
            "length should longer than 6"
        )
    words = [change.default_topic_perm, change.default_group_perm]
    for entry in (*(change.topic_perms or ()), *(change.group_perms or ())):
        name, equals, word = entry.partition("=")
        if not (name and equals):
            raise AdministrationError(f"{entry:.100}: expected name=PERMISSION")
        words.append(word)
    for word in words:
        if word and parse_permission(word) is None:
            raise AdministrationError(f"{word:.100}: expected one of {', '.join(PERMISSION_WORDS)}")


def _fields(change: AccountChange) -> dict[str, Any]:
    given = {
        files.ACCESS_KEY: change.access_key,
        files.SECRET_KEY: change.secret_key,
        files.WHITE: change.white_remote_address,
        files.ADMIN: change.admin,
        files.DEFAULT_TOPIC: change.default_topic_perm or None,
        files.DEFAULT_GROUP: change.default_group_perm or None,
        files.TOPIC_PERMS: change.topic_perms,
        files.GROUP_PERMS: change.group_perms,
    }
    return {name: value for name, value in given.items() if value is not None}


def _accounts(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the accounts of a file, which keeps the list. Raises AclFileError."""
    accounts = data.get(files.ACCOUNTS)
    if accounts is None:
        accounts = data[files.ACCOUNTS] = []
    if not isinstance(accounts, list) or not all(isinstance(each, dict) for each in accounts):
        raise AclFileError("accounts: expected a list of maps")
    return accounts


def _find(accounts: list[dict[str, Any]], access_key: str) -> dict[str, Any] | None:
    return next((each for each in accounts if _key(each) == access_key), None)


def _key(account: dict[str, Any]) -> str:
    return str(account.get(files.ACCESS_KEY))


def _shown(account: dict[str, Any], *, with_secrets: bool) -> dict[str, Any]:
    """Return the known fields of an account in the order of their names, as RocketMQ does."""
    shown: dict[str, Any] = {
        files.ACCESS_KEY: _key(account),
        files.ADMIN: bool(account.get(files.ADMIN, False)),
    }
    for name in (files.DEFAULT_GROUP, files.DEFAULT_TOPIC):
        if account.get(name) is not None:
            shown[name] = str(account[name])
    if account.get(files.GROUP_PERMS) is not None:
        shown[files.GROUP_PERMS] = [str(each) for each in account[files.GROUP_PERMS]]
    shown[files.SECRET_KEY] = str(account.get(files.SECRET_KEY)) if with_secrets else MASK
    if account.get(files.TOPIC_PERMS) is not None:
        shown[files.TOPIC_PERMS] = [str(each) for each in account[files.TOPIC_PERMS]]
    if account.get(files.WHITE) is not None:
        shown[files.WHITE] = str(account[files.WHITE])
    return shown
