"""Access control: accounts and white lists of brokers, as in RocketMQ 4.9 (plain_acl.yml).

A change goes to masters and replicas, because each broker has its own files. RocketMQ 5.3 and
newer refuse these requests. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyromq.admin.errors import UnreadableAnswerError
from pyromq.admin.session import Area, read_header
from pyromq.protocol.java.fastjson import BodyError, parse_json
from pyromq.protocol.wire.bodies import DataVersion
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers_admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)


@dataclass(frozen=True, slots=True)
class Account:
    """An account of access control."""

    access_key: str
    #: Masked by pyromq's brokers in strict mode. Not part of the text form.
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool = False
    #: DENY, PUB, SUB or PUB|SUB.
    default_topic_permission: str | None = None
    default_group_permission: str | None = None
    #: `topic=PUB|SUB`, or None to leave them as they are.
    topic_permissions: tuple[str, ...] | None = None
    group_permissions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AccessConfiguration:
    """The accounts of one broker and the addresses that need none."""

    broker: str
    global_white_addresses: tuple[str, ...]
    accounts: tuple[Account, ...]


@dataclass(frozen=True, slots=True)
class AccessFileVersion:
    """The version of one file of access control."""

    cluster: str
    broker_name: str
    broker: str
    path: str
    counter: int
    #: Milliseconds since the epoch.
    changed: int


class AccessControl(Area):
    """Accounts and white lists."""

    async def configurations(
        self, *, broker: str | None = None, cluster: str | None = None
    ) -> list[AccessConfiguration]:
        """Return the accounts of a broker, or of a cluster's masters."""
        addresses = await self._session.targets(broker, cluster)
        found = await self._session.on_each("reading the accounts", addresses, self._configuration)
        return list(found.values())

    async def versions(
        self, *, broker: str | None = None, cluster: str | None = None
    ) -> list[AccessFileVersion]:
        """Return the versions of the files of a broker, or of a cluster's masters."""
        addresses = await self._session.targets(broker, cluster)
        found = await self._session.on_each("reading the versions", addresses, self._versions)
        return [version for versions in found.values() for version in versions]

    async def update(
        self, account: Account, *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Create an account or change it; return the addresses. Fields that are None stay."""
        addresses = await self._session.targets(broker, cluster, replicas=True)
        header = CreateAccessConfigRequestHeader(
            access_key=account.access_key,
            secret_key=account.secret_key,
            white_remote_address=account.white_remote_address,
            admin=account.admin,
            default_topic_perm=account.default_topic_permission,
            default_group_perm=account.default_group_permission,
            topic_perms=_joined(account.topic_permissions),
            group_perms=_joined(account.group_permissions),
        )
        await self._session.on_each(
            f"updating account {account.access_key!r}",
            addresses,
            lambda address: self._session.ask(
                address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header
            ),
        )
        return addresses

    async def delete(
        self, access_key: str, *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Delete an account; return the addresses."""
        addresses = await self._session.targets(broker, cluster, replicas=True)
        header = DeleteAccessConfigRequestHeader(access_key)
        await self._session.on_each(
            f"deleting account {access_key!r}",
            addresses,
            lambda address: self._session.ask(address, RequestCode.DELETE_ACL_CONFIG, header),
        )
        return addresses

    async def update_global_white_list(
        self,
        white_addresses: str,
        path: str = "",
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Replace the addresses that need no account, separated by commas; return the brokers.

        `path` names a file at the broker; by default it is the broker's default file.
        """
        addresses = await self._session.targets(broker, cluster, replicas=True)
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(white_addresses, path)
        await self._session.on_each(
            "updating the global white list",
            addresses,
            lambda address: self._session.ask(
                address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header
            ),
        )
        return addresses

    # Helpers, in call order

    async def _configuration(self, address: str) -> AccessConfiguration:
        answer = await self._session.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        try:
            body = parse_json(bytes(answer.body))
            return AccessConfiguration(
                address,
                tuple(map(str, body.get("globalWhiteAddrs") or ())),
                tuple(map(_account, body.get("plainAccessConfigs") or ())),
            )
        except (BodyError, AttributeError, KeyError, TypeError) as error:
            raise UnreadableAnswerError(address, error) from error

    async def _versions(self, address: str) -> list[AccessFileVersion]:
        answer = await self._session.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        header = read_header(GetBrokerAclConfigResponseHeader, address, answer)
        try:
            table = parse_json(header.all_acl_file_version or "{}")
            versions = {path: DataVersion.from_value(value) for path, value in table.items()}
        except (BodyError, AttributeError) as error:
            raise UnreadableAnswerError(address, error) from error
        return [
            AccessFileVersion(
                header.cluster_name,
                header.broker_name,
                header.broker_addr,
                path,
                version.counter,
                version.timestamp,
            )
            for path, version in sorted(versions.items())
        ]


def _account(value: dict[str, Any]) -> Account:
    topics, groups = value.get("topicPerms"), value.get("groupPerms")
    return Account(
        value["accessKey"],
        value.get("secretKey"),
        value.get("whiteRemoteAddress"),
        bool(value.get("admin", False)),
        value.get("defaultTopicPerm"),
        value.get("defaultGroupPerm"),
        None if topics is None else tuple(topics),
        None if groups is None else tuple(groups),
    )


def _joined(permissions: Sequence[str] | None) -> str | None:
    return None if permissions is None else ",".join(permissions)
