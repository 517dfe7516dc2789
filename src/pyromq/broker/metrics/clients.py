"""Clients and their requests: connections, queues in front of workers, latencies by request.

Runs on the loop; tables of connected clients are walked 32 groups at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from pyromq.broker.instruments import BrokerInstruments
from pyromq.broker.metrics.names import boolean, is_system, version_name
from pyromq.broker.metrics.topics import STEP
from pyromq.broker.parts import BrokerParts
from pyromq.broker.state.connections import Client
from pyromq.metrics.family import Source, gauge, histogram
from pyromq.metrics.page import Page, Steps, label_text

_CLIENT: Final = ("language", "version", "protocol_type")

PRODUCERS: Final = gauge(
    "rocketmq_producer_connections",
    "Connected producers; one of several groups counts once for each.",
    _CLIENT,
    Source.ROCKETMQ,
)
CONSUMERS: Final = gauge(
    "rocketmq_consumer_connections",
    "Connected consumers of a group.",
    ("consumer_group", *_CLIENT, "consume_mode", "is_system"),
    Source.ROCKETMQ,
)
WATERMARK: Final = gauge(
    "rocketmq_processor_watermark",
    "Requests that wait for a worker thread. Plain sends and pulls never wait for one.",
    ("processor",),
    Source.ROCKETMQ,
)
RPC_LATENCY: Final = histogram(
    "rocketmq_rpc_latency_milliseconds",
    "How long the broker takes to serve a request, in milliseconds. Plain sends and pulls are "
    "served in runs, and each counts with the time of its run; those of the compiled kernel count "
    "per message, as send_message_v2. The response code of other runs is `any`.",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    Source.ROCKETMQ,
)
PARKED: Final = gauge("pyromq_parked_pulls", "Pulls that wait for messages (long polling).")

FAMILIES: Final = (PRODUCERS, CONSUMERS, WATERMARK, RPC_LATENCY, PARKED)

#: RocketMQ 5.x' processors of which no request waits here.
_WITHOUT_QUEUE: Final = (
    "async_put",
    "ack",
    "client_manager",
    "lite_pull",
    "consumer_manager",
    "reply",
)


class ClientMetrics:
    """The clients of a broker."""

    def __init__(self, parts: BrokerParts, instruments: BrokerInstruments) -> None:
        self._tables = parts.tables
        self._lanes = parts.lanes
        self._long_poll = parts.long_poll
        self._instruments = instruments

    def collect(self, page: Page) -> Steps:
        """Write the families of this module."""
        yield from self._producers(page)
        yield from self._consumers(page)
        lanes = self._lanes
        page.add(
            WATERMARK,
            *(
                (label_text(processor=name), size)
                for name, size in (
                    ("send", lanes.send.size),
                    ("pull", lanes.pull.size),
                    ("query_message", lanes.query.size),
                    ("heartbeat", lanes.heartbeat.size),
                    ("transaction", lanes.end_transaction.size),
                    ("admin", lanes.admin.size),
                    *((name, 0) for name in _WITHOUT_QUEUE),
                )
            ),
        )
        page.add(PARKED, ("", len(self._long_poll)))
        page.add_histogram(
            RPC_LATENCY,
            *(
                (
                    label_text(
                        protocol_type="remoting",
                        request_code=request,
                        response_code=response,
                        is_long_polling="false",
                        result=result,
                    ),
                    values,
                )
                for (request, response, result), values in self._instruments.rpc.items()
                if values.count
            ),
        )
        yield None

    def _producers(self, page: Page) -> Iterator[None]:
        table = self._tables.producers
        counts: Counter[tuple[str, str]] = Counter()
        for position, group in enumerate(table.groups()):
            if not position % STEP:
                yield None
            counts.update(map(_kind, table.members(group)))
        page.add(
            PRODUCERS,
            *(
                (label_text(language=language, version=version, protocol_type="remoting"), count)
                for (language, version), count in counts.items()
            ),
        )

    def _consumers(self, page: Page) -> Iterator[None]:
        block = page.block(CONSUMERS)
        table = self._tables.consumers
        for position, name in enumerate(table.names()):
            if not position % STEP:
                yield None
            group = table.find(name)
            if group is None:
                continue
            for (language, version), count in Counter(map(_kind, group.members.values())).items():
                labels = label_text(
                    consumer_group=name,
                    language=language,
                    version=version,
                    protocol_type="remoting",
                    consume_mode=_MODES[group.consume_type.name],
                    is_system=boolean(is_system("", name)),
                )
                block.add(labels, count)
        page.close(block)


_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push"}


def _kind(client: Client) -> tuple[str, str]:
    return client.language.name.lower(), version_name(client.version)
