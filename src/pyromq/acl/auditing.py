"""What servers write to the audit log: refused requests, and administrative ones with outcome.

Shared by brokers and NameServers. On the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyromq.acl.audit import DENIED, DONE, FAILED, AuditLog
from pyromq.acl.classification import Need
from pyromq.acl.rules import Account, shown_resource
from pyromq.acl.validation import AccessDeniedError, Denial
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand

#: Fields that name what a request is about.
_RESOURCES: Final = (
    "topic",
    "b",
    "consumerGroup",
    "group",
    "groupName",
    "accessKey",
    "namespace",
    "brokerName",
    "srcGroup",
    "originTopic",
)


class Auditor:
    """Writes requests to an audit log."""

    def __init__(self, log: AuditLog) -> None:
        self.log = log
        self._refusals = dict.fromkeys(Denial, 0)

    def counts(self) -> dict[str, int]:
        """Return the refused requests since the start, by reason."""
        return {kind.value: count for kind, count in self._refusals.items()}

    def refused(
        self, address: str, code: int, fields: Mapping[str, str], error: AccessDeniedError
    ) -> None:
        """Log and count a refused request."""
        self._refusals[error.kind] += 1
        self.log.write(
            account=error.access_key,
            address=address,
            code=code,
            request=request_name(code),
            resource=resource_of(fields),
            result=DENIED,
            reason=error.reason,
        )

    def answered(
        self,
        address: str,
        request: RemotingCommand,
        account: Account | None,
        answer: RemotingCommand | None,
    ) -> None:
        """Log an administrative request with its outcome."""
        is_done = answer is None or answer.code == ResponseCode.SUCCESS
        self.log.write(
            account=None if account is None else account.access_key,
            address=address,
            code=request.code,
            request=request_name(request.code),
            resource=resource_of(request.ext_fields),
            result=DONE if is_done else FAILED,
            reason=None if answer is None or is_done else answer.remark,
        )

    def left_out(
        self, address: str, request: RemotingCommand, account: Account, needs: Sequence[Need]
    ) -> None:
        """Log the groups and topics that were left out of a heartbeat."""
        names = (shown_resource(need.resource) for need in needs)
        self.log.write(
            account=account.access_key,
            address=address,
            code=request.code,
            request=request_name(request.code),
            result=DENIED,
            reason=f"left out: {', '.join(names)}",
        )


def request_name(code: int) -> str:
    """Return the name of a request code for people."""
    try:
        return RequestCode(code).name
    except ValueError:
        return "unknown"


def resource_of(fields: Mapping[str, str]) -> str | None:
    """Return what a request is about: the first of its fields that names something."""
    return next((fields[name] for name in _RESOURCES if fields.get(name)), None)


def host_of(address: str) -> str:
    """Return the address of a caller without its port."""
    return address.rpartition(":")[0].strip("[]")
