"""Responses to pulls: codes, offsets and the suggested broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.protocol.wire.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.store.results import GetResult, GetStatus
from tests.support.requests import pull_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.handlers.pulls import BOTH_ENCODINGS, offsets_of


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    assembled = AssembledBroker(tmp_path)
    assembled.topics.update(TopicConfig("T", 4, 4))
    yield assembled
    await assembled.close()


async def test_codes_and_offsets_without_messages(broker: AssembledBroker) -> None:
    empty = broker.fast.ask(pull_request())
    assert (empty.code, empty.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE")
    assert offsets_of(empty)[0] == 0
    corrected = broker.fast.ask(pull_request(queueOffset="7"))
    assert corrected.code == ResponseCode.PULL_OFFSET_MOVED
    assert offsets_of(corrected)[0] == 0

    broker.put(b"0", b"1", b"2")
    for offset, code, status, following in (
        ("3", ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        ("4", ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (str(2**63 - 1), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        ("-1", ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (str(-(2**63)), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ):
        for encoding in BOTH_ENCODINGS:
            answer = broker.fast.ask(pull_request(queueOffset=offset, encoding=encoding))
            assert (answer.code, answer.remark) == (code, status)
            assert offsets_of(answer) == (following, 0, 3)
            assert answer.body == b""


@pytest.mark.parametrize(
    ("status", "offset", "code"),
    [
        (GetStatus.MESSAGE_WAS_REMOVING, "5", ResponseCode.PULL_RETRY_IMMEDIATELY),
        (GetStatus.NO_MATCHED_MESSAGE, "5", ResponseCode.PULL_RETRY_IMMEDIATELY),
        (GetStatus.OFFSET_FOUND_NULL, "5", ResponseCode.PULL_NOT_FOUND),
        (GetStatus.OFFSET_OVERFLOW_ONE, "5", ResponseCode.PULL_NOT_FOUND),
        (GetStatus.OFFSET_OVERFLOW_BADLY, "5", ResponseCode.PULL_OFFSET_MOVED),
        (GetStatus.OFFSET_TOO_SMALL, "5", ResponseCode.PULL_OFFSET_MOVED),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, "5", ResponseCode.PULL_OFFSET_MOVED),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, "0", ResponseCode.PULL_NOT_FOUND),
        (GetStatus.NO_MESSAGE_IN_QUEUE, "5", ResponseCode.PULL_OFFSET_MOVED),
        (GetStatus.NO_MESSAGE_IN_QUEUE, "0", ResponseCode.PULL_NOT_FOUND),
    ],
)
async def test_every_status_has_rocketmqs_code(
    broker: AssembledBroker,
    monkeypatch: pytest.MonkeyPatch,
    status: GetStatus,
    offset: str,
    code: ResponseCode,
) -> None:
    monkeypatch.setattr(broker.store, "get", lambda *_, **__: GetResult(status, 11, 2, 22))

    answer = broker.fast.ask(pull_request(queueOffset=offset))

    assert (answer.code, answer.remark) == (code, status.name)
    assert offsets_of(answer) == (11, 2, 22)


@pytest.mark.parametrize(
    ("enabled", "behind", "suggested"), [(True, True, "3"), (True, False, "2"), (False, True, "0")]
)
async def test_a_consumer_far_behind_is_sent_to_a_replica(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    enabled: bool,
    behind: bool,
    suggested: str,
) -> None:
    broker = AssembledBroker(
        tmp_path, BrokerConfig(broker_ip1="127.0.0.1", slave_read_enable=enabled)
    )
    broker.groups.update(
        SubscriptionGroupConfig("consumers", broker_id=2, which_broker_when_consume_slowly=3)
    )
    broker.put(b"x")
    result = broker.store.get("T", 0, 0, 32)
    result.suggest_replica = behind
    monkeypatch.setattr(broker.store, "get", lambda *_, **__: result)

    for encoding in BOTH_ENCODINGS:
        broker.pull_handlers.settings_changed()  # the kernel knows no plan
        answer = broker.fast.ask(pull_request(encoding=encoding))
        assert answer.ext_fields["suggestWhichBrokerId"] == suggested
    await broker.close()
