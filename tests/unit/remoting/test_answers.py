from __future__ import annotations

import logging

import pytest

from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import FrameReader, RemotingCommand, RequestError
from pyromq.remoting.answers import encode_answer, error_answer, not_supported

REQUEST = RemotingCommand(34, opaque=9)


def decoded(data: bytes) -> RemotingCommand:
    (answer,) = FrameReader().feed(data)
    return answer


def test_a_refusal_is_answered_with_its_code_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = error_answer("peer", REQUEST, RequestError(ResponseCode.NO_PERMISSION, "no"))

    assert (answer.opaque, answer.code, answer.remark) == (9, ResponseCode.NO_PERMISSION, "no")
    assert caplog.text == ""


@pytest.mark.parametrize(("error", "traceback"), [(ValueError("x"), False), (KeyError("x"), True)])
def test_a_failure_is_answered_and_logged(
    error: Exception, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = error_answer("peer", REQUEST, error)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"{type(error).__name__}: {error}"
    (record,) = caplog.records
    assert record.getMessage() == f"peer: request 34 failed: {answer.remark}"
    assert bool(record.exc_info) is traceback


def test_an_unknown_code_is_named_in_rocketmqs_words() -> None:
    answer = not_supported(REQUEST)

    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 34 not supported"


def test_an_answer_that_fits_no_frame_becomes_an_error() -> None:
    large = REQUEST.answer(body=bytes(1000))
    assert decoded(encode_answer("peer", REQUEST, large, 2000)).body == large.body

    refused = decoded(encode_answer("peer", REQUEST, large, 500))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "a frame at most 500" in (refused.remark or "")

    bad = REQUEST.answer(ext_fields={"key": object()})  # type: ignore[dict-item]
    assert decoded(encode_answer("peer", REQUEST, bad, 2000)).code == ResponseCode.SYSTEM_ERROR
