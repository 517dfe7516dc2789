"""Messages as text and as JSON, in the forms of mqadmin; bodies as files, as mqadmin writes them.

Called by the message commands.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyromq.admin.message_view import MessageView
from pyromq.admin.messages.messages import FoundMessages
from pyromq.admin.messages.tracks import MessageTrack
from pyromq.cli.admin.output import time_text
from pyromq.cli.admin.running import Run
from pyromq.protocol.wire.bodies import MessageQueue


def message_json(message: MessageView) -> dict[str, Any]:
    """Return a message for JSON: its body as text, or in base64 if it is not UTF-8."""
    names = MessageView.__dataclass_fields__.keys() - {"body", "raw_body"}
    value: dict[str, Any] = {
        name: getattr(message, name) for name in MessageView.__dataclass_fields__ if name in names
    }
    try:
        value["body"] = message.body.decode()
    except UnicodeDecodeError:
        value["body_base64"] = base64.b64encode(message.body).decode()
    return value


def found_json(found: FoundMessages) -> dict[str, Any]:
    """Return the result of a query for JSON."""
    return {
        "messages": [message_json(each) for each in found.messages],
        "complete": found.complete,
        "reason": found.reason,
    }


def note_more(run: Run, *, complete: bool, reason: str) -> None:
    """Say on stderr that a result is not complete."""
    if not complete:
        run.note(f"not complete: {reason}")


def show_message(
    run: Run, message: MessageView, tracks: Sequence[MessageTrack], *, offset_id: bool = True
) -> None:
    """Print a message as `mqadmin queryMsgById` does."""
    if run.as_json:
        return
    values: dict[str, object] = {"OffsetID:": message.offset_msg_id} if offset_id else {}
    values |= {
        "Topic:": message.topic,
        "Tags:": f"[{message.tags or 'null'}]",
        "Keys:": f"[{message.keys or 'null'}]",
        "Queue ID:": message.queue_id,
        "Queue Offset:": message.queue_offset,
        "CommitLog Offset:": message.physical_offset,
        "Reconsume Times:": message.reconsume_times,
        "Born Timestamp:": time_text(message.born_timestamp),
        "Store Timestamp:": time_text(message.store_timestamp),
        "Born Host:": message.born_host,
        "Store Host:": message.store_host,
        "System Flag:": message.sys_flag,
        "Properties:": properties_text(message),
        "Message Body Path:": save_body(message),
    }
    run.pairs(values, "{:<20} {}")
    run.line()
    if not tracks:
        run.line("WARN: No Consumer")
    for track in tracks:
        run.line(
            f"MessageTrack [consumerGroup={track.group}, trackType={track.type.name}, "
            f"exceptionDesc={track.problem or 'null'}]"
        )


def tracked_json(message: MessageView, tracks: Sequence[MessageTrack]) -> dict[str, Any]:
    """Return a message and its tracks for JSON."""
    return {**message_json(message), "tracks": tracks}


def properties_text(message: MessageView) -> str:
    """Return the properties as Java prints a map."""
    return f"{{{', '.join(f'{name}={value}' for name, value in message.properties.items())}}}"


def message_line(message: MessageView, charset: str, *, body: bool) -> str:
    """Return a message as one line of `mqadmin printMsg`, without the bytes of its body."""
    text = body_text(message, charset) if body else "NOT PRINT BODY"
    return (
        f"MSGID: {message.msg_id} MessageExt [brokerName={message.broker_name}, "
        f"queueId={message.queue_id}, storeSize={message.store_size}, "
        f"queueOffset={message.queue_offset}, sysFlag={message.sys_flag}, "
        f"bornTimestamp={message.born_timestamp}, bornHost=/{message.born_host}, "
        f"storeTimestamp={message.store_timestamp}, storeHost=/{message.store_host}, "
        f"msgId={message.offset_msg_id}, commitLogOffset={message.physical_offset}, "
        f"bodyCRC={message.body_crc}, reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={message.prepared_transaction_offset}, "
        f"properties={properties_text(message)}] BODY: {text}"
    )


def body_text(message: MessageView, charset: str) -> str:
    """Return the body as text."""
    if message.problem:
        return f"CANNOT BE DECOMPRESSED: {message.problem}"
    return message.body.decode(charset, errors="replace")


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as Java prints it."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def save_body(message: MessageView, number: int = 0) -> Path:
    """Write a body to mqadmin's folder for bodies and return the path of the file.

    The folder is the user's own: another one could place links in it.
    """
    folder = Path(tempfile.gettempdir()) / "rocketmq" / "msgbodys"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / (message.msg_id + (f"_{number}" if number else ""))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(message.body or message.raw_body)
    return path
