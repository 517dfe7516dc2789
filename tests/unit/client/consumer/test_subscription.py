from __future__ import annotations

import pytest

from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import IllegalMessageError
from pyromq.protocol.java.string_hash import java_hash


@pytest.mark.parametrize("text", ["*", "", "  "])
def test_everything(text: str) -> None:
    subscription = Subscription.of(text)
    assert subscription == Subscription()
    assert subscription.wanted_tags() == frozenset()
    assert subscription.data("t", 7).sub_string == "*"


def test_tags() -> None:
    data = Subscription.of(" a || b||").data("t", 7)
    assert (data.topic, data.sub_string, data.sub_version) == ("t", "a || b||", 7)
    assert (data.tags_set, data.code_set) == ({"a", "b"}, {java_hash("a"), java_hash("b")})
    assert data.expression_type == "TAG"


def test_sql() -> None:
    subscription = Subscription.sql(" a > 1 ")
    data = subscription.data("t")
    assert (data.sub_string, data.expression_type, data.tags_set) == ("a > 1", "SQL92", set())
    assert data.sub_version > 0
    assert Subscription.of(subscription) is subscription


def test_empty_expressions_are_refused() -> None:
    with pytest.raises(IllegalMessageError, match="names no tag"):
        Subscription.tags("||")
    with pytest.raises(IllegalMessageError, match="empty"):
        Subscription.sql(" ")
