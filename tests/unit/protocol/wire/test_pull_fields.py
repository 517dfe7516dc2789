"""The names of a pull's fields are those of its header."""

from __future__ import annotations

from pyromq.protocol.wire import pull_fields
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import PullMessageRequestHeader
from tests.support.requests import pull_request


def test_names_are_those_of_the_header() -> None:
    request = pull_request(maxMsgBytes="1")
    assert request.code == RequestCode.PULL_MESSAGE
    assert set(pull_fields.NAMES) == set(request.ext_fields)
    header = PullMessageRequestHeader.decode(request.ext_fields)
    assert set(header.encode()) == set(pull_fields.NAMES)


def test_offsets_are_not_part_of_the_key() -> None:
    assert pull_fields.NAMES[pull_fields.KEY_COUNT :] == ("queueOffset", "commitOffset")
