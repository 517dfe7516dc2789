"""Requests as clients send them, for tests of brokers: sends, pulls, and raw frames."""

from __future__ import annotations

import struct
from typing import Any

import orjson

from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, Encoding, RemotingCommand

BORN = 1_700_000_000_000

V1_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "brokerName",
)
V2_NAMES = "abcdefghijklmn"


def send_fields(code: RequestCode, **values: str | None) -> dict[str, str]:
    """Return the extFields of a send. Values have their long names; None leaves one out."""
    filled: dict[str, str | None] = {
        "producerGroup": "producers",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": str(BORN),
        "flag": "7",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
        **values,
    }
    names = dict(zip(V1_NAMES, V2_NAMES, strict=True))
    return {
        name if code == RequestCode.SEND_MESSAGE else names[name]: value
        for name, value in filled.items()
        if value is not None
    }


def send_request(
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    body: bytes = b"body",
    *,
    opaque: int = 1,
    oneway: bool = False,
    encoding: Encoding = Encoding.JSON,
    version: int = 407,
    **values: str | None,
) -> RemotingCommand:
    """Return a send of any form."""
    return RemotingCommand(
        code,
        opaque=opaque,
        ext_fields=send_fields(code, **values),
        body=body,
        flag=FLAG_ONEWAY if oneway else 0,
        encoding=encoding,
        version=version,
    )


def pull_request(
    *,
    opaque: int = 1,
    oneway: bool = False,
    encoding: Encoding = Encoding.JSON,
    **values: str | None,
) -> RemotingCommand:
    """Return a pull that carries its subscription and does not wait, unless `values` differ."""
    filled: dict[str, str | None] = {
        "consumerGroup": "consumers",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **values,
    }
    return RemotingCommand(
        RequestCode.PULL_MESSAGE,
        opaque=opaque,
        ext_fields={name: value for name, value in filled.items() if value is not None},
        flag=FLAG_ONEWAY if oneway else 0,
        encoding=encoding,
    )


def raw_frame(header: dict[str, Any] | bytes, body: bytes = b"") -> bytes:
    """Return a frame with any JSON header."""
    data = header if isinstance(header, bytes) else orjson.dumps(header)
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body
