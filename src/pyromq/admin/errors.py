"""Exceptions of the admin API.

Each one says what was attempted, at which address, and what to do about it. All are
`AdminError`s, and `ClientError`s as the errors of producers and consumers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from pyromq.client.errors import BrokerError, ClientError
from pyromq.protocol.wire.codes import ResponseCode

#: Suggestions of an error about an unknown name, at most.
_SUGGESTIONS: Final = 3
#: RocketMQ 4.9 reports refused signatures and permissions as system errors with this class.
_ACL_EXCEPTION: Final = "AclException"
_NOT_FOUND: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.CONSUMER_NOT_ONLINE,
        ResponseCode.NO_MESSAGE,
    }
)


class AdminError(ClientError):
    """Base of the errors that the admin API raises."""


class UnreachableError(AdminError):
    """A server could not be reached or did not answer in time; a change may have been applied."""

    def __init__(self, address: str, reason: object) -> None:
        super().__init__(
            f"{address} does not answer: {reason}; check that it runs and that its port is open"
        )
        self.address = address


class RefusedError(AdminError):
    """A server refused a request; `code` is its response code."""

    def __init__(self, address: str, code: int, remark: str | None, advice: str = "") -> None:
        text = str(BrokerError(address, code, remark))
        super().__init__(f"{text}; {advice}" if advice else text)
        self.address = address
        self.code = code
        self.remark = remark or ""


class NotPermittedError(RefusedError):
    """The account may not do this, or its signature is wrong."""

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        super().__init__(
            address, code, remark, "give the access key and secret key of an administrator"
        )


class UnsupportedRequestError(RefusedError):
    """The server does not know this request: it is too old, or not of pyromq."""

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        super().__init__(address, code, remark, "this server does not support the request")


class NotFoundError(AdminError):
    """The thing asked for does not exist; `suggestions` are existing names that are similar."""

    def __init__(self, message: str, suggestions: Iterable[str] = ()) -> None:
        self.suggestions = tuple(suggestions)
        hint = ""
        if self.suggestions:
            hint = f"; did you mean {' or '.join(map(repr, self.suggestions))}?"
        super().__init__(message + hint)


class UnknownTopicError(NotFoundError):
    """No broker serves this topic."""

    def __init__(self, topic: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"topic {topic!r} does not exist", similar(topic, known))
        self.topic = topic


class UnknownGroupError(NotFoundError):
    """No broker knows this consumer group, or it has never consumed."""

    def __init__(self, group: str, known: Iterable[str] = (), problem: str = "") -> None:
        super().__init__(f"group {group!r} {problem or 'does not exist'}", similar(group, known))
        self.group = group


class UnknownClusterError(NotFoundError):
    """The NameServers know no cluster of this name."""

    def __init__(self, cluster: str, known: Iterable[str] = ()) -> None:
        known = sorted(known)
        super().__init__(
            f"cluster {cluster!r} does not exist; the NameServer has {', '.join(known) or 'none'}",
            similar(cluster, known),
        )
        self.cluster = cluster


class UnknownBrokerError(NotFoundError):
    """The NameServers know no broker of this name or address."""

    def __init__(self, broker: str, known: Iterable[str] = ()) -> None:
        known = sorted(known)
        super().__init__(
            f"broker {broker!r} is not registered; the NameServer has {', '.join(known) or 'none'}",
            similar(broker, known),
        )
        self.broker = broker


class PartialFailureError(AdminError):
    """A request was answered by some servers and failed on others.

    `done` has the addresses of the first, `results` their answers as far as they are of use, and
    `failures` the errors of the others by address.
    """

    def __init__(
        self,
        what: str,
        done: Iterable[str],
        failures: Mapping[str, Exception],
        results: Sequence[Any] = (),
    ) -> None:
        self.done = tuple(done)
        self.failures = dict(failures)
        self.results = tuple(results)
        where = f"done at {', '.join(self.done)}" if self.done else "done nowhere"
        details = "; ".join(str(error) for error in failures.values())
        super().__init__(f"{what} failed at {', '.join(failures)} ({where}): {details}")


class UnreadableAnswerError(AdminError):
    """A server's answer cannot be decoded: it is not a RocketMQ server, or a newer one."""

    def __init__(self, address: str, problem: Exception) -> None:
        super().__init__(
            f"the answer of {address} cannot be read: {problem}; check that this is the address "
            "of a RocketMQ server"
        )
        self.address = address


def refusal(address: str, code: int, remark: str | None) -> AdminError:
    """Return the error for a response other than SUCCESS."""
    if code == ResponseCode.NO_PERMISSION or _ACL_EXCEPTION in (remark or ""):
        return NotPermittedError(address, code, remark)
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return UnsupportedRequestError(address, code, remark)
    if code in _NOT_FOUND:
        return NotFoundError(str(BrokerError(address, code, remark)))
    return RefusedError(address, code, remark)


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names closest to a mistyped one, best first."""
    plain: dict[str, str] = {}
    for each in known:
        plain.setdefault(each.lower(), each)
    return [plain[near] for near in get_close_matches(name.lower(), plain, _SUGGESTIONS)]
