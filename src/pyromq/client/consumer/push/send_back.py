"""Messages that a handler did not take go back to their broker, to be consumed again later.

The broker that has the message puts it aside for a while (CONSUMER_SEND_MSG_BACK); after too
many times, among the group's dead letters. A broker that cannot do that is gone or has lost
the message: then the message itself is sent to the group's retry topic, wherever that is. When
that fails, too, the caller keeps the message and hands it out again by itself.

Used by the push consumer, on its event loop.
"""

from __future__ import annotations

import logging
import random
import time

from pyromq.client.errors import ClientError, TopicNotFoundError
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.routes import MASTER_ID, TEMPLATE_TOPIC
from pyromq.client.session.session import Session
from pyromq.protocol.message import properties as names
from pyromq.protocol.message.properties import encode_properties
from pyromq.protocol.message.sysflag import COMPRESSED, COMPRESSION_MASK
from pyromq.protocol.message.system_properties import retry_properties
from pyromq.protocol.names import retry_topic
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
)
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

#: The delay level at which a broker makes a message a dead letter.
DEAD_LETTER = -1
_TIMEOUT_SECONDS = 5.0
#: Under this name Java's consumers send such messages.
_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
#: The first delay of a message that is sent by ourselves: level 3, then longer ones.
_FIRST_DELAY_LEVEL = 3
#: The bits that say how a body is compressed.
_COMPRESSION = COMPRESSED | COMPRESSION_MASK


class SendBack:
    """Sends the messages of a group back."""

    def __init__(
        self, session: Session, group: str, max_reconsume_times: int, *, unit_mode: bool
    ) -> None:
        self._session = session
        self._group = session.wrap(group)
        self._max_reconsume_times = max_reconsume_times
        self._unit_mode = unit_mode

    async def __call__(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """Whether somebody else keeps the message now; failures are logged."""
        try:
            await self._ask_its_broker(message, delay_level)
        except (ClientError, RemotingError) as error:
            logger.warning("%r not taken back, sent to the retry topic: %s", message, error)
        except Exception:
            logger.exception("%r not taken back, sent to the retry topic", message)
        else:
            return True
        try:
            await self._send_again(message, delay_level)
        except (ClientError, RemotingError) as error:
            logger.warning("%r could not be sent to the retry topic: %s", message, error)
            return False
        except Exception:
            # A mistake of ours must not lose the message.
            logger.exception("%r could not be sent to the retry topic", message)
            return False
        return True

    async def _ask_its_broker(self, message: ReceivedMessage, delay_level: int) -> None:
        session = self._session
        route = await session.routes.get(session.wrap(message.queue.topic))
        address = route.addresses.get(message.queue.broker_name, {}).get(MASTER_ID)
        if address is None:
            raise TopicNotFoundError(
                message.queue.topic, f"broker {message.queue.broker_name!r} has no master"
            )
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=session.wrap(message.topic),
            unit_mode=self._unit_mode,
            max_reconsume_times=self._max_reconsume_times,
        )
        await session.ask(
            address,
            RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=header.encode()),
            _TIMEOUT_SECONDS,
        )

    async def _send_again(self, message: ReceivedMessage, delay_level: int) -> None:
        session = self._session
        topic = retry_topic(self._group)
        route = await session.routes.get(topic)
        if not route.write_queues:
            raise TopicNotFoundError(topic, "none of its queues can be written to")
        queue = random.choice(route.write_queues)  # noqa: S311 - any queue will do
        is_dead = delay_level == DEAD_LETTER
        properties = {
            **retry_properties(message.all_properties),
            names.RETRY_TOPIC: session.wrap(message.topic),
            names.DELAY: str(_FIRST_DELAY_LEVEL + message.reconsume_times),
        }
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.msg_id)
        header = SendMessageRequestHeaderV2(
            producer_group=_INNER_PRODUCER,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            # What could not be decompressed here goes on as it is.
            sys_flag=0 if message.is_readable else message.sys_flag & _COMPRESSION,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=message.flag,
            properties=encode_properties(properties).decode(),
            # As often as possible: the broker makes it a dead letter.
            reconsume_times=self._max_reconsume_times if is_dead else message.reconsume_times + 1,
            unit_mode=self._unit_mode,
            max_reconsume_times=self._max_reconsume_times,
            batch=False,
            broker_name=queue.broker_name,
        )
        await session.ask(
            route.address_of(queue.broker_name),
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, ext_fields=header.encode(), body=message.raw_body
            ),
            _TIMEOUT_SECONDS,
        )
