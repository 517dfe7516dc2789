from __future__ import annotations

import pytest

from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    NameServerError,
    NoMasterError,
    TopicNotFoundError,
    reading_answer,
    refusal_of,
)


def test_a_broker_error_names_address_code_and_remark() -> None:
    error = BrokerError("h:1", 17, "no such topic")
    assert str(error) == "h:1 answered TOPIC_NOT_EXIST (17): no such topic"
    assert (error.code, error.remark) == (17, "no such topic")


def test_codes_of_newer_brokers_are_shown_as_numbers() -> None:
    assert str(BrokerError("h:1", 9999, None)) == "h:1 answered code 9999: no remark"


def test_a_name_server_error_shows_the_error_of_each() -> None:
    causes = {"a:1": OSError("refused"), "b:2": OSError("silent")}
    error = NameServerError("tell the route of topic 't'", causes)
    assert str(error) == "no NameServer could tell the route of topic 't': refused; silent"
    assert error.causes == causes


def test_an_answer_error_names_the_server() -> None:
    expected = r"response of h:1 cannot be decoded: bad"
    with pytest.raises(AnswerError, match=expected), reading_answer("h:1"):
        raise ValueError("bad")


@pytest.mark.parametrize(
    ("header", "code", "remark"),
    [
        ({"code": 2, "remark": "busy"}, 2, "busy"),
        ({"code": "2", "remark": ["busy"]}, -1, ""),
        ({}, -1, ""),
    ],
)
def test_an_error_response_is_reported_whatever_it_holds(
    header: dict[str, object], code: int, remark: str
) -> None:
    refusal = refusal_of("a:1", header)
    assert (refusal.address, refusal.code, refusal.remark) == ("a:1", code, remark)


def test_an_error_about_missing_masters_names_what_is_left() -> None:
    error = NoMasterError("t", {"b": {2: "h:2", 1: "h:1"}, "a": {1: "h:3"}, "c": {}})
    assert str(error) == (
        "topic 't': a has no master: only replica h:3 (id 1); b has no master: only replicas "
        "h:1 (id 1), h:2 (id 2); c has no master"
    )
    assert isinstance(error, TopicNotFoundError)
    assert error.topic == "t"
