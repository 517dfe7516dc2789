"""Access control of a NameServer: requests that change its state need an administrator.

RocketMQ's NameServer checks nothing. With `aclEnable=true` this one takes registrations, deletions
and changes of settings only from an account with `admin: true` of the files that brokers use, or
from an address in a global white list: RocketMQ's brokers do not sign their registrations. For
registrations, `peer: true` is enough. Routes and other reads stay open.

Refused requests go to the audit log, and all others that change something, except registrations,
which brokers repeat every 30 seconds.

On the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Final

from pyromq.acl.auditing import Auditor, host_of
from pyromq.acl.classification import ADMIN, PEER
from pyromq.acl.reload import AclStore
from pyromq.acl.rules import Account, Rules
from pyromq.acl.settings import AclMode, audit_log_of, files_of
from pyromq.acl.validation import AccessDeniedError, Validator
from pyromq.nameserver.config import NamesrvConfig
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.answers import error_answer
from pyromq.remoting.connection import Connection, Handler
from pyromq.remoting.service import Result

#: Requests of brokers about themselves. QUERY_DATA_VERSION keeps a broker registered.
REGISTRATION: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
    }
)
#: Requests that change state.
CHANGES: Final = REGISTRATION | frozenset(
    {
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
#: Requests that change nothing.
READS: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_NAMESRV_CONFIG,
    }
)
_ROUTINE: Final = frozenset({RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION})


class NameServerAccess:
    """Guards the handlers of a NameServer."""

    def __init__(self, config: NamesrvConfig) -> None:
        self.rules = AclStore(files_of(config, strict=config.acl_mode is AclMode.strict))
        self._validator = Validator(self.rules.rules, strict=True)
        self.rules.listeners.append(self._rules_changed)
        default_log = Path(config.kv_config_path).with_name("audit.log")
        self._auditor = Auditor(audit_log_of(config, "namesrv", default_log))

    def guard(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers, with a check before those that change something.

        Raises ValueError for a code that is in neither list.
        """
        unknown = handlers.keys() - CHANGES - READS
        if unknown:
            raise ValueError(f"request codes without a class: {sorted(unknown)}")
        return {
            code: self._guarded(handler) if code in CHANGES else handler
            for code, handler in handlers.items()
        }

    def refusals(self) -> dict[str, int]:
        """Return the refused requests since the start, by reason."""
        return self._auditor.counts()

    def close(self) -> None:
        """Close the audit log."""
        self._auditor.log.close()

    def _rules_changed(self, rules: Rules) -> None:
        self._validator.rules = rules

    def _guarded(self, handler: Handler) -> Handler:
        def serve(connection: Connection, request: RemotingCommand) -> Result:
            address = connection.remote_address
            access = PEER if request.code in REGISTRATION else ADMIN
            try:
                account = self._validator.check(
                    host_of(address), request.code, access, request.ext_fields, request.body
                )
            except AccessDeniedError as error:
                self._auditor.refused(address, request.code, request.ext_fields, error)
                raise
            if request.code in _ROUTINE:
                return handler(connection, request)
            return self._audited(handler, connection, request, account)

        return serve

    async def _audited(
        self,
        handler: Handler,
        connection: Connection,
        request: RemotingCommand,
        account: Account | None,
    ) -> RemotingCommand | None:
        try:
            result = handler(connection, request)
            answer = await result if isinstance(result, Awaitable) else result
        except Exception as error:
            answer = error_answer(connection.remote_address, request, error)
        self._auditor.answered(connection.remote_address, request, account, answer)
        return answer
