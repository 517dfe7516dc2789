"""Requests about access control itself: accounts, white lists, and the versions of their files.

UPDATE_AND_CREATE_ACL_CONFIG, DELETE_ACL_CONFIG, UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
GET_BROKER_CLUSTER_ACL_INFO and GET_BROKER_CLUSTER_ACL_CONFIG. As in RocketMQ, the last one returns
secrets in compatible mode; strict mode masks them.

A broker without access control refuses all of them. Handlers run on the loop; files are written on
a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

from pyromq.acl import classification as access
from pyromq.acl.administration import (
    AccountChange,
    AclAdministration,
    AdministrationError,
    split_permissions,
)
from pyromq.acl.files import AclFileError
from pyromq.acl.rules import FileVersion
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Route, Routes
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.java.fastjson import dump_json
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
)

logger = logging.getLogger(__name__)


class AccessHandlers:
    """Changes and shows the accounts of a broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._address = parts.address
        control = parts.access_control
        self._shows_secrets = control is not None and not control.is_strict
        self._accounts = None if control is None else AclAdministration(control.rules)

    def routes(self) -> Routes:
        """Return the routes of the family."""
        code = RequestCode
        return Routes(
            Route(code.UPDATE_AND_CREATE_ACL_CONFIG, access.ADMIN, self.update),
            Route(code.DELETE_ACL_CONFIG, access.ADMIN, self.delete),
            Route(code.GET_BROKER_CLUSTER_ACL_INFO, access.ADMIN, self.versions, is_query=True),
            Route(code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, access.ADMIN, self.update_white_list),
            Route(code.GET_BROKER_CLUSTER_ACL_CONFIG, access.ADMIN, self.get, is_query=True),
        )

    async def update(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UPDATE_AND_CREATE_ACL_CONFIG: create or change an account."""
        accounts = self._administration(request)
        header = CreateAccessConfigRequestHeader.decode(request.ext_fields)
        change = AccountChange(
            access_key=header.access_key,
            secret_key=header.secret_key,
            white_remote_address=header.white_remote_address,
            admin=header.admin,
            default_topic_perm=header.default_topic_perm,
            default_group_perm=header.default_group_perm,
            topic_perms=split_permissions(header.topic_perms),
            group_perms=split_permissions(header.group_perms),
        )
        return await self._changed(
            connection,
            request,
            accounts.update_account(change),
            ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
            f"The accesskey[{header.access_key}] corresponding to accessConfig has been updated "
            "failed.",
        )

    async def delete(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """DELETE_ACL_CONFIG: delete an account."""
        accounts = self._administration(request)
        header = DeleteAccessConfigRequestHeader.decode(request.ext_fields)
        return await self._changed(
            connection,
            request,
            accounts.delete_account(header.access_key),
            ResponseCode.DELETE_ACL_CONFIG_FAILED,
            f"The accesskey[{header.access_key}] corresponding to accessConfig has been deleted "
            "failed.",
        )

    async def update_white_list(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: replace the white list of a file."""
        accounts = self._administration(request)
        addresses = request.ext_fields.get("globalWhiteAddrs", "")
        path = request.ext_fields.get("aclFileFullPath")  # mqadmin leaves it out without -p
        return await self._changed(
            connection,
            request,
            accounts.update_white_list(addresses, path),
            ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
            f"The globalWhiteAddresses[{addresses}] has been updated failed.",
        )

    def versions(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_BROKER_CLUSTER_ACL_INFO: return the versions of the files."""
        accounts = self._administration(request)
        table = {path: _version(version) for path, version in accounts.versions().items()}
        header = GetBrokerAclConfigResponseHeader(
            version=dump_json(_version(accounts.default_version())).decode(),
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.broker_cluster_name,
            all_acl_file_version=dump_json(table).decode(),
        )
        return request.answer(ext_fields=header.encode())

    async def get(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_BROKER_CLUSTER_ACL_CONFIG: return all accounts."""
        white, accounts = await self._administration(request).shown(
            with_secrets=self._shows_secrets
        )
        body: dict[str, Any] = {"globalWhiteAddrs": white, "plainAccessConfigs": accounts}
        return request.answer(body=dump_json(body))

    async def _changed(
        self,
        connection: ClientConnection,
        request: RemotingCommand,
        change: Awaitable[None],
        code: ResponseCode,
        remark: str,
    ) -> RemotingCommand:
        """Wait for a change and answer; `code` and `remark` are RocketMQ's for a failure."""
        try:
            await change
        except (AdministrationError, AclFileError, OSError) as error:
            logger.warning(
                "%s: request %d not applied: %s", connection.remote_address, request.code, error
            )
            raise RequestError(code, f"{remark} {error}") from error
        logger.info(
            "%s changed access control: request %d", connection.remote_address, request.code
        )
        return request.answer()

    def _administration(self, request: RemotingCommand) -> AclAdministration:
        """Refuse a request without access control, so that no operator relies on it."""
        if self._accounts is None:
            raise RequestError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request type {request.code} not supported: this broker has no access control "
                "(aclEnable)",
            )
        return self._accounts


def _version(version: FileVersion) -> dict[str, int]:
    return {"counter": version.counter, "timestamp": version.timestamp}
