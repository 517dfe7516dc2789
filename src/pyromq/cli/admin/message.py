"""The commands of `pyromq admin` about messages: find, print, trace, send, and queue entries."""

from __future__ import annotations

from typing import Any, Final

import click
import orjson

from pyromq.admin.errors import AdminError, NotFoundError
from pyromq.admin.messages.messages import DirectConsumption
from pyromq.admin.messages.tracks import TraceEvent
from pyromq.base.clock import now_ms
from pyromq.cli.admin.message_text import (
    found_json,
    note_more,
    queue_text,
    show_message,
    tracked_json,
)
from pyromq.cli.admin.options import body_size_option, flag_value_option, text_option, topic_option
from pyromq.cli.admin.output import cell, plain, second_text, time_text
from pyromq.cli.admin.running import Run, admin_command
from pyromq.cli.admin.times import Timestamp
from pyromq.protocol.names import TRACE_TOPIC

#: The number of messages that mqadmin looks for.
_KEY_LIMIT: Final = 64


expression_option = text_option(
    "-s", "--subExpression", "expression", "Print only messages with these tags: a || b."
)
end_option = click.option("-e", "--endTimestamp", "end", type=Timestamp(), help="End at this time.")


# Queries


@admin_command("queryMsgById")
@text_option(
    "-i", "--msgId", "ids", "Find messages by these ids, separated by commas.", required=True
)
@text_option("-g", "--consumerGroup", "group", "Hand the messages to this group (with -d).")
@text_option("-d", "--clientId", "client_id", "Hand the messages to this member (with -g).")
@flag_value_option(
    "-s", "--sendMessage", "resend", "Send copies of the messages to their topics.", default="false"
)
@text_option("-u", "--unitName", "unit", "Send copies as a client of this unit.")
async def query_msg_by_id(
    run: Run,
    ids: str,
    group: str | None,
    client_id: str | None,
    resend: bool,
    unit: str | None,
) -> None:
    """Show messages by the ids that brokers made (offset message ids).

    With -g and -d, a connected consumer handles them at once. With -s true, copies are sent.

    \b
    Examples
        pyromq admin queryMsgById -i 7F00000100002A9F0000000000000000
    """
    messages = run.admin.messages
    wanted = [word.strip() for word in ids.split(",") if word.strip()]
    if group is not None and client_id is not None:
        results = {each: await messages.consume_directly(group, client_id, each) for each in wanted}
        run.result(results)
        for consumption in results.values():
            run.line(_direct_text(consumption))
    elif resend:
        sent = {each: await messages.send_again(each, unit_name=unit or "") for each in wanted}
        run.result({each: result._asdict() for each, result in sent.items()})
        for each, result in sent.items():
            run.line(
                f"prepare resend msg. originalMsgId={each}SendResult "
                f"[sendStatus={result.status.name}, msgId={result.msg_id}, "
                f"offsetMsgId={result.offset_msg_id}, messageQueue={queue_text(result.queue)}, "
                f"queueOffset={result.queue_offset}]"
            )
    else:
        found = []
        for each in wanted:
            message = await messages.by_id(each)
            tracks = await messages.track(message)
            found.append(tracked_json(message, tracks))
            show_message(run, message, tracks)
        run.result(found)


@admin_command("queryMsgByUniqueKey")
@text_option("-i", "--msgId", "msg_id", "Find the message with this id.", required=True)
@text_option("-g", "--consumerGroup", "group", "Hand the message to this group (with -d).")
@text_option("-d", "--clientId", "client_id", "Hand the message to this member (with -g).")
@topic_option("Look for it in this topic.")
@click.option("-a", "--showAll", "show_all", is_flag=True, help="Show all copies, not the first.")
async def query_msg_by_unique_key(
    run: Run, msg_id: str, group: str | None, client_id: str | None, topic: str, show_all: bool
) -> None:
    """Show a message by the id that its producer made.

    With -g and -d, a connected consumer handles it at once.

    \b
    Examples
        pyromq admin queryMsgByUniqueKey -t orders -i 7F00000100002A9F0000000000000000
    """
    messages = run.admin.messages
    found = await messages.by_unique_key(topic, msg_id)
    if not found.messages:
        raise NotFoundError(f"topic {topic!r} has no message with the id {msg_id}")
    if group is not None and client_id is not None:
        first = found.messages[0]
        result = await messages.consume_directly(group, client_id, first.offset_msg_id)
        run.result(result)
        run.line(_direct_text(result))
        return
    shown = found.messages if show_all else found.messages[:1]
    values = []
    for message in shown:
        tracks = await messages.track(message)
        values.append(tracked_json(message, tracks))
        show_message(run, message, tracks, offset_id=False)
    run.result(values)
    if show_all:
        note_more(run, complete=found.complete, reason=found.reason)


@admin_command("queryMsgByKey")
@topic_option("Look for messages in this topic.")
@text_option("-k", "--msgKey", "key", "Find messages with this key.", required=True)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_KEY_LIMIT,
    show_default=True,
    help="Show at most this many, the newest ones.",
)
@click.option("--begin", type=Timestamp(), help="Find only messages stored at or after this time.")
@click.option("--end", type=Timestamp(), help="Find only messages stored up to this time.")
async def query_msg_by_key(
    run: Run, topic: str, key: str, limit: int, begin: int | None, end: int | None
) -> None:
    """List messages by a key. A note on stderr says so if there may be more.

    \b
    Examples
        pyromq admin queryMsgByKey -t orders -k order-17
    """
    times = {name: value for name, value in (("begin", begin), ("end", end)) if value is not None}
    found = await run.admin.messages.by_key(topic, key, limit=limit, **times)
    if not found.messages:
        raise NotFoundError(f"topic {topic!r} has no message with the key {key!r}")
    run.result(found_json(found))
    run.table(
        ("#Message ID", "#QID", "#Offset"),
        [(each.msg_id, each.queue_id, each.queue_offset) for each in found.messages],
        numbers=("#QID", "#Offset"),
    )
    note_more(run, complete=found.complete, reason=found.reason)


@admin_command("queryMsgByOffset")
@topic_option("Read a queue of this topic.")
@text_option("-b", "--brokerName", "broker_name", "Read it at this broker.", required=True)
@click.option(
    "-i", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="Read this queue."
)
@click.option(
    "-o",
    "--offset",
    type=click.IntRange(0),
    required=True,
    help="Show the message at this queue offset.",
)
async def query_msg_by_offset(
    run: Run, topic: str, broker_name: str, queue_id: int, offset: int
) -> None:
    """Show the message at an offset of a queue.

    \b
    Examples
        pyromq admin queryMsgByOffset -t orders -b broker-a -i 0 -o 1200
    """
    message = await run.admin.messages.by_offset(topic, broker_name, queue_id, offset)
    tracks = await run.admin.messages.track(message)
    run.result(tracked_json(message, tracks))
    show_message(run, message, tracks)


@admin_command("queryMsgByTime")
@topic_option("Read this topic.")
@click.option(
    "-b",
    "--beginTimestamp",
    "begin",
    type=Timestamp(),
    required=True,
    help="Show messages stored at or after this time: milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS.",
)
@end_option
@expression_option
@text_option("-a", "--brokerName", "broker_name", "Read only queues of this broker.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="Read only this queue.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_KEY_LIMIT,
    show_default=True,
    help="Show at most this many, the first ones.",
)
async def query_msg_by_time(
    run: Run,
    topic: str,
    begin: int,
    end: int | None,
    expression: str | None,
    broker_name: str | None,
    queue_id: int | None,
    limit: int,
) -> None:
    """List messages by the time at which they were stored. mqadmin has no such command.

    A note on stderr says so if there are more.

    \b
    Examples
        pyromq admin queryMsgByTime -t orders -b '2026-11-17#08:00:00:000' --limit 10
    """
    found = await run.admin.messages.by_time(
        topic,
        begin,
        now_ms() if end is None else end,
        limit=limit,
        subscription=expression or "*",
        broker_name=broker_name,
        queue_id=queue_id,
    )
    run.result(found_json(found))
    run.table(
        ("#Message ID", "#Broker Name", "#QID", "#Offset", "#Stored", "#Tags", "#Keys", "#Size"),
        [
            (
                each.msg_id,
                each.broker_name,
                each.queue_id,
                each.queue_offset,
                time_text(each.store_timestamp),
                each.tags,
                each.keys,
                len(each.body),
            )
            for each in found.messages
        ],
        numbers=("#QID", "#Offset", "#Size"),
    )
    note_more(run, complete=found.complete, reason=found.reason)


@admin_command("queryMsgTraceById")
@text_option("-i", "--msgId", "msg_id", "Show the traces of this message.", required=True)
@text_option(
    "-t",
    "--traceTopic",
    "trace_topic",
    "Look for traces in this topic.",
    default=TRACE_TOPIC,
    show_default=True,
)
async def query_msg_trace_by_id(run: Run, msg_id: str, trace_topic: str) -> None:
    """Show who sent and who consumed a message, if the clients traced it.

    \b
    Examples
        pyromq admin queryMsgTraceById -i 7F00000100002A9F0000000000000000
    """
    events = await run.admin.messages.trace(msg_id, trace_topic=trace_topic)
    if not events:
        raise NotFoundError(f"topic {trace_topic!r} has no trace of message {msg_id}")
    run.result(events)
    for event in events:
        if event.type == "Pub":
            _show_events(run, "#ProducerGroup", "#SendTime", [event])
    groups = dict.fromkeys(event.group for event in events if event.type == "SubAfter")
    for group in groups:
        consumed = [each for each in events if each.type == "SubAfter" and each.group == group]
        _show_events(run, "#ConsumerGroup", "#ConsumerTime", consumed)


def _show_events(run: Run, group: str, time: str, events: list[TraceEvent]) -> None:
    run.table(
        ("#Type", group, "#ClientHost", time, "#CostTimes", "#Status"),
        [
            (
                "Pub" if each.type == "Pub" else "Sub",
                each.group,
                each.client_host,
                second_text(each.timestamp),
                f"{each.cost_ms}ms",
                "success" if each.succeeded else "failed",
            )
            for each in events
        ],
    )
    run.line()


# Sending


@admin_command("sendMessage")
@topic_option("Send to this topic.")
@text_option("-p", "--body", "body", "Send this text.", required=True)
@text_option("-k", "--key", "keys", "Index the message under these keys.", default="")
@text_option("-c", "--tags", "tags", "Set the tag by which consumers filter.", default="")
@text_option("-b", "--broker", "broker_name", "Send to this broker (with -i).")
@click.option(
    "-i", "--qid", "queue_id", type=click.IntRange(0), help="Send to this queue (with -b)."
)
@flag_value_option("-m", "--msgTraceEnable", "trace", "Send a trace, too.", default="false")
async def send_message(
    run: Run,
    topic: str,
    body: str,
    keys: str,
    tags: str,
    broker_name: str | None,
    queue_id: int | None,
    trace: bool,
) -> None:
    """Send a message.

    \b
    Examples
        pyromq admin sendMessage -t orders -p 'one book' -k order-17
    """
    if queue_id is not None and broker_name is None:
        raise click.UsageError("Broker name must be set if the queue is chosen!")
    result = await run.admin.messages.send(
        topic,
        body.encode(),
        tags=tags,
        keys=keys,
        broker_name=broker_name,
        queue_id=queue_id,
        trace=trace,
    )
    run.result(plain(result._asdict()))
    run.table(
        ("#Broker Name", "#QID", "#Send Result", "#MsgId"),
        [
            (
                result.queue.broker_name,
                result.queue.queue_id,
                result.status.name,
                result.msg_id,
            )
        ],
    )


@admin_command("checkMsgSendRT")
@topic_option("Send to this topic.")
@click.option(
    "-a",
    "--amount",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Send this many messages.",
)
@body_size_option()
async def check_msg_send_rt(run: Run, topic: str, amount: int, size: int) -> None:
    """Send messages to one queue after the other and show how long each takes, in ms.

    As in mqadmin, the average leaves the first message out.

    \b
    Examples
        pyromq admin checkMsgSendRT -t orders -a 100 -s 1024
    """
    latencies = run.admin.messages.check_latency(topic, amount=amount, size=size)
    found = [each async for each in latencies]
    later = [each.latency_ms for each in found[1:]]
    average = sum(later) / len(later) if later else 0.0
    run.result({"sends": found, "average_ms": average})
    run.table(
        ("#Broker Name", "#QID", "#Send Result", "#RT"),
        [
            (each.broker_name, each.queue_id, each.succeeded, round(each.latency_ms))
            for each in found
        ],
        numbers=("#QID", "#RT"),
    )
    run.line(f"Avg RT: {average:.2f}")
    failed = [each.problem for each in found if not each.succeeded]
    if failed:
        raise AdminError(f"{len(failed)} of {len(found)} messages were not sent: {failed[0]}")


# Queue entries


@admin_command("queryCq")
@topic_option("Show a queue of this topic.")
@click.option(
    "-q", "--queue", "queue_id", type=click.IntRange(0), required=True, help="Show this queue."
)
@click.option("-i", "--index", type=click.IntRange(0), required=True, help="Begin at this entry.")
@click.option(
    "-c",
    "--count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Show this many entries.",
)
@text_option("-b", "--broker", "broker", "Ask the broker at this address.", metavar="ADDRESS")
@text_option("-g", "--consumer", "group", "Show whether this group's filter accepts each.")
async def query_cq(
    run: Run,
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    broker: str | None,
    group: str | None,
) -> None:
    """Show entries of a consume queue: physical offset, size and hash of the tags.

    \b
    Examples
        pyromq admin queryCq -t orders -q 0 -i 1200 -c 5
    """
    found = await run.admin.messages.queue_entries(
        topic, queue_id, index, count, broker=broker or None, group=group
    )
    run.result(found)
    line = "=" * 38
    if found.subscription is not None:
        run.line(f"Subscription data: \n{_indented(found.subscription.to_value())}\n{line}")
    if found.filter_data is not None:
        run.line(f"Filter data: \n{found.filter_data}\n{line}")
    run.line(f"Queue data: \nmax: {found.max_index}, min: {found.min_index}\n{line}")
    for each in found.entries:
        run.line(f"idx: {each.index}")
        run.line(
            f"ConsumeQueueData{{physicOffset={each.physical_offset}, physicSize={each.size}, "
            f"tagsCode={each.tags_code}, extendDataJson='{_or_null(each.extension)}', "
            f"bitMap='{_or_null(each.bit_map)}', eval={cell(each.is_accepted)}, "
            f"msg='{_or_null(each.problem)}'}}"
        )
        run.line(line)


# Helpers


def _direct_text(result: DirectConsumption) -> str:
    return (
        f"ConsumeMessageDirectlyResult [order={cell(result.order)}, "
        f"autoCommit={cell(result.auto_commit)}, consumeResult={result.result.name}, "
        f"remark={_or_null(result.remark)}, spentTimeMills={result.spent_ms}]"
    )


def _indented(values: dict[str, Any]) -> str:
    """Return an object as Java's JSON library indents it."""
    fields = (f'\t"{name}":{orjson.dumps(value).decode()}' for name, value in values.items())
    return "{\n" + ",\n".join(fields) + "\n}"


def _or_null(text: str | None) -> str:
    return "null" if text is None else text
