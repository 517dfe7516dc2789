"""Messages for tests of the admin API: made up, and dead letters of a live cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyromq.admin import Admin
from pyromq.admin.message_view import MessageView
from pyromq.client import Message, Producer
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import ConsumerSendMsgBackRequestHeader

_DEFAULTS: dict[str, Any] = {
    "msg_id": "ID",
    "offset_msg_id": "OFFSET-ID",
    "topic": "%DLQ%billing",
    "broker_name": "broker-0",
    "queue_id": 0,
    "queue_offset": 0,
    "physical_offset": 0,
    "tags": "",
    "keys": "",
    "properties": {},
    "body": b"body",
    "raw_body": b"body",
    "problem": "",
    "flag": 0,
    "sys_flag": 0,
    "born_timestamp": 1,
    "born_host": "127.0.0.1:1",
    "store_timestamp": 2,
    "store_host": "127.0.0.1:10911",
    "reconsume_times": 3,
    "prepared_transaction_offset": 0,
    "store_size": 100,
    "body_crc": 0,
}


def made_up(**fields: Any) -> MessageView:
    """A message with these fields."""
    return MessageView(**{**_DEFAULTS, **fields})


async def make_dead_letters(
    admin: Admin, namesrv: str, topic: str, group: str, bodies: Sequence[bytes], **fields: Any
) -> None:
    """Send messages and give them back as hopeless, as consumers of the group do."""
    async with Producer(namesrv) as producer:
        for body in bodies:
            sent = await producer.send(Message(topic, body, **fields))
            host, port, offset = decode_message_id(sent.offset_msg_id)
            header = ConsumerSendMsgBackRequestHeader(offset, group, delay_level=-1)
            await admin.session.ask(f"{host}:{port}", RequestCode.CONSUMER_SEND_MSG_BACK, header)
