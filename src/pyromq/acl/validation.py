"""The verdict on a request: pass, or refuse with RocketMQ's words.

The order of the checks is RocketMQ's:

1. A caller in a global white list passes, even without a signature.
2. The request names a known account (`AccessKey`).
3. A caller in the white list of the account passes, without a signature.
4. The signature is the account's.
5. Strict mode: a request with a time is not older or newer than `aclReplayWindowMillis`.
6. Anybody may send to the trace topic.
7. An administrative code needs an administrator; strict mode lets peers use a few of them.
8. Each resource needs its permission (`classification`).

A refusal has the code SYSTEM_ERROR and the text of RocketMQ's exception, which tools search for. It
says nothing that its reader does not know: never a secret, never the expected signature.

On the loop, for each request. `Validator.rules` may be replaced between two requests.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from pyromq.acl.addresses import parse_address
from pyromq.acl.classification import (
    COMPATIBLE_ADMIN,
    HEARTBEAT,
    Access,
    Fields,
    Heartbeat,
    Need,
    allowed_heartbeat,
    compatible_needs,
    strict_need,
    strictly_allows,
)
from pyromq.acl.rules import Account, Permission, Rules, shown_resource
from pyromq.acl.signature import is_signed_by
from pyromq.base.clock import Clock, now_ms
from pyromq.base.log_lines import printable
from pyromq.protocol.names import TRACE_TOPIC
from pyromq.protocol.wire.acl import ACCESS_KEY
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError

_MANAGER: Final = "org.apache.rocketmq.acl.plain.PlainPermissionManager"
#: Characters of a caller's text in a refusal.
_QUOTED: Final = 255

_TRACE: Final = Need(TRACE_TOPIC, Permission.PUB)


class Denial(enum.Enum):
    """Why a request is refused, in one word for metrics."""

    NO_ACCESS_KEY = "no_access_key"
    UNKNOWN_ACCOUNT = "unknown_account"
    SIGNATURE = "signature"
    TIME = "time"
    NOT_ADMIN = "not_admin"
    PERMISSION = "permission"


class AccessDeniedError(RequestError):
    """A refused request; `reason` is the text without RocketMQ's frame."""

    def __init__(
        self,
        reason: str,
        where: str,
        access_key: str | None,
        kind: Denial = Denial.PERMISSION,
    ) -> None:
        super().__init__(
            ResponseCode.SYSTEM_ERROR,
            f"org.apache.rocketmq.acl.common.AclException: {reason}, {_MANAGER}.{where}",
        )
        self.reason = reason
        self.access_key = access_key
        self.kind = kind


class Validator:
    """Checks requests against the rules."""

    def __init__(
        self,
        rules: Rules,
        *,
        strict: bool = False,
        replay_window: int = 0,
        clock: Clock = now_ms,
    ) -> None:
        """`replay_window` is in milliseconds; 0 turns the check off."""
        self.rules = rules
        self.strict = strict
        self._replay_window = replay_window
        self._clock = clock

    def authenticate(self, host: str, fields: Fields, body: bytes) -> Account | None:
        """Return the account that signed a request, or None if its caller needs none.

        Raises AccessDeniedError.
        """
        rules = self.rules
        if rules.is_white(host):
            return None
        access_key = fields.get(ACCESS_KEY)
        if access_key is None:
            raise _denied(Denial.NO_ACCESS_KEY, "No accessKey is configured", "validate", 663, None)
        account = rules.accounts.get(access_key)
        if account is None:
            known = printable(access_key, _QUOTED)
            text = f"No acl config for {known}"
            raise _denied(Denial.UNKNOWN_ACCOUNT, text, "validate", 667, known)
        if not account.white.is_blank and account.white.matches(parse_address(host)):
            return None
        if not is_signed_by(account, fields, body):
            raise _denied(
                Denial.SIGNATURE,
                f"Check signature failed for accessKey={access_key}",
                "validate",
                683,
                access_key,
            )
        return account

    def check(
        self, host: str, code: int, access: Access, fields: Fields, body: bytes
    ) -> Account | None:
        """Return the account that may send this request, or None if its caller needs none.

        `host` is the caller's address without a port, `access` the class of the code. Raises
        AccessDeniedError, and ValueError for a request that cannot be read. Strict mode leaves
        heartbeats to `heartbeat`, and messages that only the store knows to `check_stored`.
        """
        # First: only an account may make the server parse a body.
        account = self.authenticate(host, fields, body)
        if account is None:
            return None
        needs: Iterable[Need]
        if self.strict:
            self._check_time(account, access, fields)
            _check_admin(account, code, is_allowed=access.admits(account))
            needs = () if access.needs is None else access.needs(fields, body)
            if _TRACE not in needs:
                self.check_needs(account, needs)
            return account
        needs = compatible_needs(code, fields, body)
        if _TRACE not in needs:
            is_allowed = account.is_admin or code not in COMPATIBLE_ADMIN
            _check_admin(account, code, is_allowed=is_allowed)
            self.check_needs(account, needs)
        return account

    def check_needs(self, account: Account, needs: Iterable[Need]) -> None:
        """Raise AccessDeniedError unless an account may use all these resources."""
        for need in needs:
            allowed = strictly_allows(account, need) if self.strict else account.allows(*need)
            if not allowed:
                line = 610 if need.resource in account.resources else 605
                resource = printable(shown_resource(need.resource), _QUOTED)
                reason = f"No default permission for {resource}"
                raise _denied(Denial.PERMISSION, reason, "checkPerm", line, account.access_key)

    def check_stored(self, account: Account, topic: str, permission: Permission) -> None:
        """Raise AccessDeniedError unless an account may use the topic of a stored message."""
        self.check_needs(account, [strict_need(topic, permission)])

    def heartbeat(self, account: Account, access: Access, body: bytes) -> Heartbeat | None:
        """Return what strict mode leaves of a heartbeat; None for any other request.

        Raises AccessDeniedError if nothing is left, and ValueError.
        """
        if access is not HEARTBEAT or not self.strict:
            return None
        allowed = allowed_heartbeat(account, body)
        if not allowed.is_useful:
            self.check_needs(account, allowed.refused)
        return allowed

    def _check_time(self, account: Account, access: Access, fields: Fields) -> None:
        if access.time_field is None or not self._replay_window:
            return
        text = fields.get(access.time_field, "")
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            return  # the handler refuses it
        age = self._clock() - int(text)
        if abs(age) > self._replay_window:
            raise _denied(
                Denial.TIME,
                f"The request was made {age} ms ago, limit {self._replay_window} ms "
                "(aclReplayWindowMillis); check the clocks",
                "validate",
                683,
                account.access_key,
            )


def _check_admin(account: Account, code: int, *, is_allowed: bool) -> None:
    if not is_allowed:
        raise _denied(
            Denial.NOT_ADMIN,
            f"Need admin permission for request code={code}, but "
            f"accessKey={account.access_key} is not",
            "checkPerm",
            580,
            account.access_key,
        )


def _denied(
    kind: Denial, reason: str, method: str, line: int, access_key: str | None
) -> AccessDeniedError:
    where = f"{method}(PlainPermissionManager.java:{line})"
    return AccessDeniedError(reason, where, access_key, kind)
