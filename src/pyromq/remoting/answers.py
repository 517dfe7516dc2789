"""Responses that the server itself builds: errors, unknown codes, and responses that do not fit.

Every request that expects a response gets one, whatever goes wrong: a response that cannot be
encoded or exceeds the frame limit is replaced by SYSTEM_ERROR with the cause.
"""

from __future__ import annotations

import logging

from pyromq.base.log_lines import shortened
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import MAX_REMARK, RemotingCommand, RequestError

logger = logging.getLogger(__name__)


def error_answer(
    remote_address: str, request: RemotingCommand, error: Exception
) -> RemotingCommand:
    """Return the response to a request whose handler raised `error`.

    A RequestError carries its code and remark. Any other exception is logged and answered with
    SYSTEM_ERROR and its text.
    """
    if isinstance(error, RequestError):
        return request.answer(error.code, error.remark)
    kind = type(error).__name__
    cause = shortened(f"{kind}: {error}", MAX_REMARK)
    logger.error(
        "%s: request %d failed: %s",
        remote_address,
        request.code,
        cause,
        exc_info=not isinstance(error, ValueError),
        extra={"kind": (request.code, kind)},
    )
    return request.answer(ResponseCode.SYSTEM_ERROR, cause)


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Return the response to a request whose code has no handler, in RocketMQ's words."""
    return request.answer(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
    )


def encode_answer(
    remote_address: str, request: RemotingCommand, answer: RemotingCommand, max_frame: int
) -> bytes:
    """Encode a response, or the error that it cannot be encoded in a frame."""
    try:
        encoded = answer.encode()
    except (ValueError, TypeError) as error:
        return error_answer(remote_address, request, error).encode()
    if len(encoded) <= max_frame:
        return encoded
    # The peer could only close the connection and lose every other response on it.
    remark = (
        f"the response to request {request.code} has {len(encoded)} bytes,"
        f" a frame at most {max_frame}"
    )
    logger.error("%s: %s", remote_address, remark)
    return request.answer(ResponseCode.SYSTEM_ERROR, remark).encode()
