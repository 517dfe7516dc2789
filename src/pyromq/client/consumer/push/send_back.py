"""Send messages that a handler failed on back to their broker, for delivery after a delay.

The broker that stores the message schedules it for redelivery (CONSUMER_SEND_MSG_BACK), or moves
it to the group's dead-letter topic after too many attempts. If that broker is unreachable or has
lost the message, a copy is sent to the group's retry topic at any broker. If that fails as well,
the caller keeps the message and retries it locally.

Used by the push consumer, on its event loop.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from pyromq.base.clock import now_ms
from pyromq.client.errors import ClientError, TopicNotFoundError
from pyromq.client.received import ReceivedMessage
from pyromq.client.session.routes import TEMPLATE_TOPIC
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

#: The delay level that makes a message a dead letter.
DEAD_LETTER: Final = -1
_TIMEOUT_SECONDS: Final = 5.0
#: The producer group that Java's consumers use for copies.
_INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
#: The delay level of a copy on the first attempt; each attempt adds one.
_FIRST_DELAY_LEVEL: Final = 3
#: The bits of the system flag that describe the body's compression.
_COMPRESSION: Final = COMPRESSED | COMPRESSION_MASK


class SendBack:
    """Sends back messages on behalf of one group."""

    def __init__(
        self, session: Session, group: str, max_reconsume_times: int, *, unit_mode: bool
    ) -> None:
        self._session = session
        self._group = session.wrap(group)
        self._max_reconsume_times = max_reconsume_times
        self._unit_mode = unit_mode

    async def __call__(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """Return whether a broker has taken the message. Failures are logged."""
        try:
            await self._return_to_broker(message, delay_level)
        except (ClientError, RemotingError) as error:
            logger.warning("send-back of %r failed, trying the retry topic: %s", message, error)
        except Exception:
            logger.exception("send-back of %r failed, trying the retry topic", message)
        else:
            return True
        try:
            await self._send_copy(message, delay_level)
        except (ClientError, RemotingError) as error:
            logger.warning("%r not sent to the retry topic: %s", message, error)
            return False
        except Exception:
            # A bug must not lose the message.
            logger.exception("%r not sent to the retry topic", message)
            return False
        return True

    async def _return_to_broker(self, message: ReceivedMessage, delay_level: int) -> None:
        session = self._session
        route = await session.routes.get(session.wrap(message.queue.topic))
        address = route.master_of(message.queue.broker_name)
        if address is None:
            raise route.no_master(message.queue.topic, message.queue.broker_name)
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

    async def _send_copy(self, message: ReceivedMessage, delay_level: int) -> None:
        session = self._session
        topic = retry_topic(self._group)
        route = await session.routes.get(topic)
        masters = [
            (queue, address)
            for queue in route.write_queues
            if (address := route.master_of(queue.broker_name)) is not None
        ]
        if not masters:
            raise TopicNotFoundError(topic, "none of its queues is writable")
        queue, address = random.choice(masters)  # noqa: S311 - any queue will do
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
            # A body that could not be decompressed is sent as it was stored.
            sys_flag=0 if message.is_readable else message.sys_flag & _COMPRESSION,
            born_timestamp=now_ms(),
            flag=message.flag,
            properties=encode_properties(properties).decode(),
            # At the maximum, the broker makes the message a dead letter.
            reconsume_times=self._max_reconsume_times if is_dead else message.reconsume_times + 1,
            unit_mode=self._unit_mode,
            max_reconsume_times=self._max_reconsume_times,
            batch=False,
            broker_name=queue.broker_name,
        )
        await session.ask(
            address,
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, ext_fields=header.encode(), body=message.raw_body
            ),
            _TIMEOUT_SECONDS,
        )
