"""Codes are complete, distinct, and have the numbers of the wire protocol."""

from __future__ import annotations

from enum import IntEnum

import pytest

from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, RequestCode, ResponseCode


@pytest.mark.parametrize(
    ("codes", "count"), [(RequestCode, 103), (ResponseCode, 37), (LanguageCode, 13)]
)
def test_every_number_has_one_name(codes: type[IntEnum], count: int) -> None:
    # An IntEnum silently turns a duplicate number into an alias.
    assert len(codes.__members__) == len(codes) == count


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SEND_MESSAGE", 10),
        ("PULL_MESSAGE", 11),
        ("QUERY_CONSUMER_OFFSET", 14),
        ("UPDATE_CONSUMER_OFFSET", 15),
        ("HEART_BEAT", 34),
        ("UNREGISTER_CLIENT", 35),
        ("GET_CONSUMER_LIST_BY_GROUP", 38),
        ("NOTIFY_CONSUMER_IDS_CHANGED", 40),
        ("REGISTER_BROKER", 103),
        ("UNREGISTER_BROKER", 104),
        ("GET_ROUTEINFO_BY_TOPIC", 105),
        ("SEND_MESSAGE_V2", 310),
        ("SEND_BATCH_MESSAGE", 320),
        ("QUERY_DATA_VERSION", 322),
        ("LITE_PULL_MESSAGE", 361),
        ("PROMOTE_BROKER", 70001),
    ],
)
def test_requests(name: str, number: int) -> None:
    assert RequestCode[name] == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SUCCESS", 0),
        ("SYSTEM_ERROR", 1),
        ("SYSTEM_BUSY", 2),
        ("REQUEST_CODE_NOT_SUPPORTED", 3),
        ("MESSAGE_ILLEGAL", 13),
        ("NO_PERMISSION", 16),
        ("TOPIC_NOT_EXIST", 17),
        ("PULL_NOT_FOUND", 19),
        ("PULL_RETRY_IMMEDIATELY", 20),
        ("PULL_OFFSET_MOVED", 21),
        ("QUERY_NOT_FOUND", 22),
        ("SUBSCRIPTION_GROUP_NOT_EXIST", 26),
    ],
)
def test_responses(name: str, number: int) -> None:
    assert ResponseCode[name] == number


def test_languages_fit_in_one_byte() -> None:
    assert all(0 <= language <= 0xFF for language in LanguageCode)
    assert (LanguageCode.JAVA, LanguageCode.PYTHON, LanguageCode.OTHER) == (0, 3, 7)


def test_version_is_4_9_7() -> None:
    assert PROTOCOL_VERSION == 407
