"""What a client's caller can get instead of a result.

Every exception of the client is a `ClientError`; what happens to connections is a
`RemotingError` that names the server's address. Both are `RocketMQError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyromq.protocol.errors import RocketMQError
from pyromq.protocol.wire.codes import ResponseCode


class ClientError(RocketMQError):
    """Base of everything that the client raises by itself."""


class IllegalMessageError(ClientError, ValueError):
    """A message, name or expression that no broker would take; nothing was sent."""


class OptionError(ClientError, ValueError):
    """An option that is unknown, not possible, or against another one."""


class ClientStateError(ClientError):
    """Used before it was started, or after it was closed."""


class NameServerError(ClientError):
    """No NameServer gave an answer; `causes` holds what each of them did."""

    def __init__(self, asked: str, causes: Mapping[str, Exception]) -> None:
        details = "; ".join(str(cause) for cause in causes.values())
        super().__init__(f"no NameServer could {asked}: {details}")
        self.causes = dict(causes)


class TopicNotFoundError(ClientError):
    """No broker serves this topic, and none would create it."""

    def __init__(self, topic: str, remark: str) -> None:
        super().__init__(f"topic {topic!r} has no route: {remark}")
        self.topic = topic


class UnreadableBodyError(ClientError, ValueError):
    """A received message's body cannot be decompressed; `raw_body` has it as it was stored."""


class RequestTimeoutError(ClientError, TimeoutError):
    """Nobody has replied to a request in time; whether somebody has got it is not known."""

    def __init__(self, topic: str, seconds: float, problem: str) -> None:
        super().__init__(f"request to topic {topic!r}: {problem} within {seconds:g} s")
        self.topic = topic


class BrokerError(ClientError):
    """A server answered with an error code."""

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        super().__init__(f"{address} answered {_code_name(code)}: {remark or 'no remark'}")
        self.address = address
        self.code = code
        self.remark = remark or ""


class AnswerError(ClientError):
    """A server's answer cannot be read: it is no RocketMQ server, or a newer one."""

    def __init__(self, address: str, problem: ValueError) -> None:
        super().__init__(f"{address} gave an answer that cannot be read: {problem}")
        self.address = address


def refusal_of(address: str, header: Mapping[str, Any]) -> BrokerError:
    """What an answer's raw header says that is no success, whatever stands in it."""
    code, remark = header.get("code"), header.get("remark")
    return BrokerError(
        address,
        code if type(code) is int else -1,
        remark if isinstance(remark, str) else None,
    )


@contextmanager
def reading_answer(address: str) -> Iterator[None]:
    """Turn what decoders raise into an AnswerError that names the server."""
    try:
        yield
    except ValueError as error:
        raise AnswerError(address, error) from error


def _code_name(code: int) -> str:
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
