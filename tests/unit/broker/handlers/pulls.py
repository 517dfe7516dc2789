"""Helpers for tests of pulls: decode responses, subscribe."""

from __future__ import annotations

from typing import Any

from pyromq.broker.state.connections import Client as Member
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.record import decode_records
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from pyromq.protocol.wire.bodies import (
    ConsumerData,
    MessageModel,
    SubscriptionData,
)
from pyromq.protocol.wire.codes import LanguageCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from tests.unit.broker.assembled import AssembledBroker

BOTH_ENCODINGS = (Encoding.JSON, Encoding.ROCKETMQ)
#: Flags of a waiting pull that carries its subscription.
WAITING = str(PULL_SUSPEND | PULL_SUBSCRIPTION)


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


def offsets_of(answer: RemotingCommand) -> tuple[int, int, int]:
    fields = answer.ext_fields
    return tuple(int(fields[f"{name}Offset"]) for name in ("nextBegin", "min", "max"))  # type: ignore[return-value]


def subscribe(
    broker: AssembledBroker,
    expression: str,
    *,
    version: int = 1,
    model: MessageModel = MessageModel.CLUSTERING,
    **values: Any,
) -> None:
    """Register a heartbeat of a member of the group `consumers`."""
    tags = {tag.strip() for tag in expression.split("||")} - {"*", ""}
    subscription = SubscriptionData(
        "T", expression, tags, {java_hash(tag) for tag in tags}, version, **values
    )
    broker.consumers.register(
        ConsumerData("consumers", message_model=model, subscription_data_set=[subscription]),
        Member(broker.fast.connection, "id", LanguageCode.JAVA, 407),
    )
