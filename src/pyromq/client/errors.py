"""Exceptions that clients raise.

Errors of the client itself are `ClientError`s. Errors of a connection are `RemotingError`s and name
the server's address. Both are `RocketMQError`s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyromq.protocol.errors import RocketMQError
from pyromq.protocol.wire.codes import ResponseCode


class ClientError(RocketMQError):
    """Base of the errors that clients raise, apart from connection errors."""


class IllegalMessageError(ClientError, ValueError):
    """A message, name or expression that every broker would refuse. Nothing was sent."""


class OptionError(ClientError, ValueError):
    """An option or argument that is unknown, invalid, or contradicts another one."""


class ClientStateError(ClientError):
    """A client was used before its start, after its close, or in a forked child."""


class NameServerError(ClientError):
    """No NameServer answered; `causes` holds the error of each, by address."""

    def __init__(self, asked: str, causes: Mapping[str, Exception]) -> None:
        details = "; ".join(str(cause) for cause in causes.values())
        super().__init__(f"no NameServer could {asked}: {details}")
        self.causes = dict(causes)


class TopicNotFoundError(ClientError):
    """No broker serves this topic, and none creates it."""

    def __init__(self, topic: str, remark: str) -> None:
        super().__init__(f"topic {topic!r} has no route: {remark}")
        self.topic = topic


class NoMasterError(TopicNotFoundError):
    """A topic's brokers have no master at present, and only a master can do what was asked."""

    def __init__(self, topic: str, brokers: Mapping[str, Mapping[int, str]]) -> None:
        """Take the addresses of the replicas that are left, by broker name and broker id."""
        ClientError.__init__(
            self,
            f"topic {topic!r}: "
            + "; ".join(
                f"{name} has no master{_only_replicas(ids)}"
                for name, ids in sorted(brokers.items())
            ),
        )
        self.topic = topic


class UnreadableBodyError(ClientError, ValueError):
    """The body of a received message cannot be decompressed; `raw_body` holds the stored bytes."""


class RequestTimeoutError(ClientError, TimeoutError):
    """A request got no reply in time. A consumer may or may not have received it."""

    def __init__(self, topic: str, seconds: float, problem: str) -> None:
        super().__init__(f"request to topic {topic!r}: {problem} within {seconds:g} s")
        self.topic = topic


class BrokerError(ClientError):
    """A server responded with an error code."""

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        super().__init__(f"{address} answered {_code_name(code)}: {remark or 'no remark'}")
        self.address = address
        self.code = code
        self.remark = remark or ""


class AnswerError(ClientError):
    """A server's response cannot be decoded: it is not a RocketMQ server, or a newer one."""

    def __init__(self, address: str, problem: ValueError) -> None:
        super().__init__(f"response of {address} cannot be decoded: {problem}")
        self.address = address


def refusal_of(address: str, header: Mapping[str, Any]) -> BrokerError:
    """Return the error that a response's raw header describes, whatever its fields hold."""
    code, remark = header.get("code"), header.get("remark")
    return BrokerError(
        address,
        code if type(code) is int else -1,
        remark if isinstance(remark, str) else None,
    )


@contextmanager
def reading_answer(address: str) -> Iterator[None]:
    """Turn a decoder's ValueError into an AnswerError that names the server."""
    try:
        yield
    except ValueError as error:
        raise AnswerError(address, error) from error


def _only_replicas(ids: Mapping[int, str]) -> str:
    if not ids:
        return ""
    named = ", ".join(f"{ids[key]} (id {key})" for key in sorted(ids))
    return f": only replica{'s' if len(ids) > 1 else ''} {named}"


def _code_name(code: int) -> str:
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
