from __future__ import annotations

import pytest

from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    NotPermittedError,
    PartialFailureError,
    RefusedError,
    UnknownClusterError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
    UnsupportedRequestError,
    refusal,
    similar,
)
from pyromq.client import ClientError
from pyromq.protocol.wire.codes import ResponseCode

ADDRESS = "10.0.0.1:10911"


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (ResponseCode.NO_PERMISSION, "no", NotPermittedError),
        (ResponseCode.SYSTEM_ERROR, "org...AclException: No accessKey", NotPermittedError),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, None, UnsupportedRequestError),
        (ResponseCode.TOPIC_NOT_EXIST, "no topic", NotFoundError),
        (ResponseCode.CONSUMER_NOT_ONLINE, "offline", NotFoundError),
        (ResponseCode.SYSTEM_ERROR, "broken", RefusedError),
        (12345, None, RefusedError),
    ],
)
def test_a_refusal_names_the_server(code: int, remark: str | None, kind: type[AdminError]) -> None:
    error = refusal(ADDRESS, code, remark)
    assert type(error) is kind
    assert isinstance(error, ClientError)
    assert ADDRESS in str(error)
    assert (remark or "") in str(error)


def test_a_refused_error_keeps_code_and_remark() -> None:
    error = refusal(ADDRESS, 1, "broken")
    assert isinstance(error, RefusedError)
    assert (error.address, error.code, error.remark) == (ADDRESS, 1, "broken")


def test_suggestions() -> None:
    known = ["orders", "Orders-2", "invoices"]
    assert similar("ORDRES", known) == ["orders", "Orders-2"]
    assert UnknownTopicError("invoice", known).suggestions == ("invoices",)
    assert "did you mean" not in str(UnknownTopicError("xyz", known))
    assert str(UnknownGroupError("readrs", ["readers"])) == (
        "group 'readrs' does not exist; did you mean 'readers'?"
    )
    assert "the NameServer has none" in str(UnknownClusterError("c"))


def test_a_partial_failure_names_both_sides() -> None:
    error = PartialFailureError(
        "deleting", ["a:1"], {"b:2": UnreachableError("b:2", "connection refused")}
    )
    assert "failed at b:2 (done at a:1)" in str(error)
    assert "connection refused" in str(error)
    assert "done nowhere" in str(PartialFailureError("deleting", [], {"b:2": ValueError("no")}))
