"""Writes limits.md: every limit that protects the servers from their peers.

    .venv/bin/python docs/generate_limits.py

Limits that can be set are fields of the configuration classes, declared with `limit=`. Fixed ones
are constants of the code, listed in `FIXED`; their values are read from the code. A constant whose
name says MAX belongs either there or in `INTERNAL`, with the reason why no peer meets it. A test
fails when the page differs from what `render` returns or when a constant is in neither list.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyromq
from pyromq.base.settings import settings_of
from pyromq.broker.config import BrokerConfig
from pyromq.nameserver.config import NamesrvConfig
from pyromq.store.config import MessageStoreConfig

PAGE = Path(__file__).with_name("limits.md")
PACKAGE = Path(pyromq.__file__).parent
#: Peers reach the code of these packages.
PACKAGES = ("base", "broker", "nameserver", "protocol", "remoting", "store")

_INTRODUCTION = """\
# Limits

<!-- Made by docs/generate_limits.py from the code: do not edit. -->

Every limit that protects a server from its peers, and what a peer gets when it reaches one. The
defaults leave room for 10,000 topics, 2,000 groups and 5,000 connections on one broker
(`tests/integration/test_limits.py` runs a broker at that size). Change a setting in the server's
file, or the *live* ones with `mqadmin updateBrokerConfig`; sizes are in bytes, times in the unit
that the key names.
"""


class FixedLimit(NamedTuple):
    """A constant that bounds what a peer may do."""

    module: str
    name: str
    bounds: str
    effect: str


_CLOSED = "The connection is closed, with a line in the log."
_SYSTEM_ERROR = "SYSTEM_ERROR that names the limit."
_ILLEGAL = "MESSAGE_ILLEGAL."
_SHORTER = "The answer carries less than was asked for."
_NOT_READ = "The connection is not read from until it is below again."

FIXED = (
    FixedLimit(
        "protocol.wire.frame", "MAX_FRAME", "Bytes of a frame, in both directions.", _CLOSED
    ),
    FixedLimit(
        "protocol.wire.frame", "MAX_REMARK", "Characters of a remark.", "The remark is cut."
    ),
    FixedLimit("protocol.java.wire_types", "_MAX_DIGITS", "Characters of a number.", _SYSTEM_ERROR),
    FixedLimit("protocol.java.fastjson", "_MAX_DEPTH", "Nesting of a JSON body.", _SYSTEM_ERROR),
    FixedLimit("protocol.names", "MAX_TOPIC_LENGTH", "Bytes of a topic's name.", _SYSTEM_ERROR),
    FixedLimit("protocol.names", "MAX_GROUP_LENGTH", "Bytes of a group's name.", _SYSTEM_ERROR),
    FixedLimit("protocol.message.properties", "MAX_PROPERTIES", "Bytes of properties.", _ILLEGAL),
    FixedLimit(
        "protocol.filter.sql",
        "MAX_LENGTH",
        "Characters of an SQL92 expression.",
        "SUBSCRIPTION_PARSE_FAILED; in a heartbeat the subscription has no filter.",
    ),
    FixedLimit(
        "protocol.filter.sql",
        "MAX_DEPTH",
        "Nesting of an SQL92 expression.",
        "SUBSCRIPTION_PARSE_FAILED; in a heartbeat the subscription has no filter.",
    ),
    FixedLimit(
        "protocol.wire.bodies",
        "MAX_REGISTRATION",
        "Bytes of a compressed registration after decompression.",
        _SYSTEM_ERROR,
    ),
    FixedLimit(
        "base.log_lines",
        "MAX_LINES_OF_A_KIND",
        "Log lines of one kind in ten seconds.",
        "Further lines are counted; the count is logged.",
    ),
    FixedLimit(
        "remoting.connection", "MAX_UNSENT", "Bytes of unread answers to a peer.", _NOT_READ
    ),
    FixedLimit(
        "remoting.unfinished", "_MAX_UNFINISHED", "Requests in progress of a peer.", _NOT_READ
    ),
    FixedLimit(
        "remoting.unfinished",
        "_MAX_UNFINISHED_SIZE",
        "Bytes of the requests in progress of a peer.",
        _NOT_READ,
    ),
    FixedLimit(
        "remoting.connection",
        "_MAX_BACKLOG",
        "Bytes of late answers and requests that a peer has not read.",
        _CLOSED,
    ),
    FixedLimit(
        "remoting.limits",
        "MIN_BYTES_PER_SECOND",
        "Bytes per second at which a frame must arrive, beyond `maxFrameSeconds`.",
        _CLOSED,
    ),
    FixedLimit("broker.config", "MAX_QUEUES", "Queues of a topic.", _SYSTEM_ERROR),
    FixedLimit(
        "broker.handlers.admin.config",
        "MAX_CHANGE_SIZE",
        "Bytes of UPDATE_BROKER_CONFIG.",
        _SYSTEM_ERROR,
    ),
    FixedLimit("base.settings", "MAX_TEXT_LENGTH", "Characters of a setting.", _SYSTEM_ERROR),
    FixedLimit(
        "broker.handlers.admin.queue_entries",
        "_MAX_ENTRIES",
        "Entries of QUERY_CONSUME_QUEUE.",
        _SHORTER,
    ),
    FixedLimit("broker.handlers.query", "_MAX_BODY", "Bytes that QUERY_MESSAGE returns.", _SHORTER),
    FixedLimit(
        "broker.handlers.heartbeat",
        "MAX_CLIENT_ID_LENGTH",
        "Characters of a client id.",
        _SYSTEM_ERROR,
    ),
    FixedLimit(
        "broker.handlers.locks",
        "MAX_LOCK_NAME_LENGTH",
        "Characters of a name in a lock request.",
        _SYSTEM_ERROR,
    ),
    FixedLimit(
        "broker.handlers.disk_pull", "_MAX_BULK", "Bulk pulls of a peer at a time.", "SYSTEM_BUSY."
    ),
    FixedLimit(
        "broker.handlers.pull_serving", "_MAX_FILTERED", "Messages of a filtered pull.", _SHORTER
    ),
    FixedLimit(
        "broker.handlers.pull_serving",
        "_MAX_FILTERED_BYTES",
        "Bytes of a filtered bulk pull.",
        _SHORTER,
    ),
    FixedLimit("store.queues.bulk_reading", "MAX_BULK_COUNT", "Messages of a bulk pull.", _SHORTER),
    FixedLimit(
        "broker.services.flow_control",
        "MAX_WAITING_SIZE",
        "Bytes of the requests that wait in a lane.",
        "SYSTEM_BUSY with [OVERLOAD] in the remark.",
    ),
    FixedLimit(
        "broker.services.long_poll",
        "_MAX_PER_QUEUE",
        "Waiting pulls of one queue.",
        "The oldest one is answered PULL_NOT_FOUND.",
    ),
    FixedLimit(
        "broker.state.topics",
        "MAX_REGISTRATION_TOPICS",
        "Bytes of all topics as JSON, as a registration carries them.",
        "A request that needs a new topic gets SYSTEM_ERROR.",
    ),
    FixedLimit(
        "nameserver.handlers",
        "MAX_WAITING_SIZE",
        "Bytes of registrations that wait for their turn.",
        "SYSTEM_BUSY; the broker registers again later.",
    ),
    FixedLimit(
        "nameserver.handlers",
        "MAX_SMALL_BODY",
        "Bytes of QUERY_DATA_VERSION and UPDATE_NAMESRV_CONFIG.",
        _SYSTEM_ERROR,
    ),
    FixedLimit(
        "nameserver.route_table",
        "MAX_NAME_LENGTH",
        "Characters of the name or address of a broker, a cluster or a topic.",
        "SYSTEM_ERROR to the registration; a topic gets no route.",
    ),
    FixedLimit(
        "nameserver.route_table",
        "MAX_CLUSTERS_PER_BROKER",
        "Clusters of a broker name.",
        _SYSTEM_ERROR,
    ),
    FixedLimit(
        "nameserver.registration",
        "MAX_FILTER_SERVERS",
        "Filter servers of a broker.",
        _SYSTEM_ERROR,
    ),
    FixedLimit(
        "nameserver.registration",
        "MAX_FILTER_SERVER_LENGTH",
        "Characters of a filter server's address.",
        _SYSTEM_ERROR,
    ),
)

_FORMAT = "part of a format"
_WORK = "a unit of work, or the size of a cache"
_OWN = "what the server itself writes or logs"
_DEFAULT = "the default of a setting"
_OPERATOR = "for an operator's own input"

#: Constants that no peer meets as a limit, with the reason.
INTERNAL = {
    "base.log_lines.MAX_NAMED": _WORK,
    "broker.config._MAX_HOST_NAME": _OPERATOR,
    "broker.config._MAX_REGION_LENGTH": _OPERATOR,
    "broker.handlers.admin.consume_stats._MAX_QUEUES_PER_ITERATION": _WORK,
    "broker.handlers.admin.offsets._MAX_ITEMS_PER_ITERATION": _WORK,
    "broker.handlers.admin.topic._MAX_PERMISSION": _FORMAT,
    "broker.handlers.heartbeat._MAX_GROUPS_PER_ITERATION": _WORK,
    "broker.handlers.locks._MAX_QUEUES_PER_ITERATION": _WORK,
    "broker.state.queue_locks._MAX_LOCKS_PER_ITERATION": _WORK,
    "broker.state.topic_json._MAX_SPARE_ENTRIES": _WORK,
    "broker.state.transactions._MAX_REMEMBERED": _WORK,
    "broker.handlers.pull_plans._MAX_PLANS": _WORK,
    "broker.handlers.pull_plans.MAX_CACHED_LENGTH": _WORK,
    "broker.handlers.disk_pull._MAX_READS": _WORK,
    "broker.handlers.pull_filters._MAX_COMPILED_LENGTH": _WORK,
    "broker.handlers.send_slow.MAX_BATCH_AT_ONCE": _WORK,
    "broker.handlers.send._INT_MAX": _FORMAT,
    "broker.handlers.send_back._INT_MAX": _FORMAT,
    "base.settings._MAX_QUOTED": _OWN,
    "broker.services.delay._MAX_BRING_INS": _WORK,
    "broker.services.delay._MAX_RETRY_SECONDS": _WORK,
    "broker.services.delay._MAX_SLEEP_SECONDS": _WORK,
    "broker.services.flow_control._MAX_CONCURRENT_SCANS": _WORK,
    "broker.services.registration._MAX_PERIOD_SECONDS": _OWN,
    "broker.services.stats._MAX_QUEUES_PER_SAMPLE": _WORK,
    "broker.services.stats._MAX_RATE_SECONDS": _WORK,
    "broker.services.transaction_check._MAX_STEP_HALVES": _WORK,
    "broker.services.transaction_check._MAX_STEP_SECONDS": _WORK,
    "broker.services.registration._MAX_BODY": _OWN,
    "broker.services.transaction_check._MAX_REASONS": _OWN,
    "broker.services.transaction_check._MAX_REASONS_LOGGED": _OWN,
    "broker.state.delay_progress._MAX_LEVELS": _FORMAT,
    "nameserver.route_table._MAX_NAMES_SHOWN": _OWN,
    "protocol.wire.bodies._MAX_DATA_VERSION": "part of MAX_REGISTRATION",
    "protocol.wire.bodies._MAX_FILTER_SERVERS": "part of MAX_REGISTRATION",
    "protocol.message.compression.MAX_DECOMPRESSED": "for clients, which decompress messages",
    "protocol.filter.by_properties._MAX_DECODED": _WORK,
    "protocol.filter.sql_values._MAX_LONG_TEXTS": _WORK,
    "protocol.filter.sql_values._MAX_UNCACHED_LENGTH": _WORK,
    "protocol.wire.header_binary.MAX_KEY": _FORMAT,
    "protocol.java.string_hash._MAX_UNITS_WITHOUT_NUMPY": _WORK,
    "protocol.java.string_hashes.MAX_WINDOW": _WORK,
    "protocol.message.bulk._MAX_DISTINCT_VALUES": _WORK,
    "protocol.message.bulk._MAX_RECORD_TO_SEARCH": _WORK,
    "protocol.wire.frame._MAX_UNMERGED_CHUNKS": _WORK,
    "base.log_lines.MAX_KINDS": _OWN,
    "base.memo._MAX_ENTRIES": _WORK,
    "base.memo._MAX_LENGTH": _WORK,
    "protocol.message.properties.MAX_RECONSUME_TIMES": "the name of a property",
    "protocol.message.record.MAX_TOPIC": _FORMAT,
    "protocol.message.units.MAX_EXTENSION_ADDRESS": _FORMAT,
    "protocol.message.units.MAX_EXTENSION_UNIT": _FORMAT,
    "remoting.blocking._MAX_OPAQUE": _FORMAT,
    "remoting.client._MAX_OPAQUE": _FORMAT,
    "remoting.limits.MAX_RECEIVED": _DEFAULT,
    "remoting.limits._MAX_ADDRESS_SHARE": "part of maxConnectionsPerAddress",
    "remoting.limits.MAX_UNSENT": _DEFAULT,
    "remoting.runs._MAX_RUN": _WORK,
    "broker.handlers.pull._MAX_RUN": _WORK,
    "broker.broker._MAX_PORT_ATTEMPTS": _OWN,
    "store.growth._MAX_COUNTED": _WORK,
    "store.growth._MAX_PLAIN": _WORK,
    "store.index.lane._MAX_READ_SIZE": _WORK,
    "store.log.commit_log._MAX_RESIDENT": _WORK,
    "store.log.mapped_file._MAX_READ": _WORK,
    "store.log.mapped_file._MAX_ZEROS": _WORK,
    "store.log.transient_store_pool._MAX_WRITE": _WORK,
    "store.queues.bulk_reading._MAX_CALLS": _WORK,
    "store.queues.bulk_reading._MAX_GAP": _WORK,
    "store.queues.consume_queue._MAX_SEARCHED_FILES": _WORK,
    "store.queues.lookup._MAX_RESTARTS": _WORK,
    "store.retention._MAX_DELETED": _WORK,
    "store.offline.check_index._MAX_NAMED": _OWN,
    "store.offline.check_log._MAX_READS": _WORK,
    "store.offline.check_queues._MAX_NAMED": _OWN,
    "store.queues.consume_queue._MAX_RESERVE": _WORK,
    "store.queues.extension._MAX_RESERVE": _WORK,
    "base.descriptors.MAX_MAPPED": _DEFAULT,
    "store.offline.dump._MAX_JSON": _OPERATOR,
    "store.offline.dump._MAX_SHOWN_BODY": _WORK,
    "store.offline.log_parts._MAX_KEYS_PER_APPEND": _WORK,
    "store.recovery.piece_helper._MAX_REQUESTS": _WORK,
    "store.recovery.walk._MAX_PIECES_AHEAD": _WORK,
    "store.index.index.MAX_JOINED_PROPERTIES": _WORK,
    "store.index.index.MAX_PLAIN_RECORDS": _WORK,
    "store.index.index._MAX_SYNC_RETRIES": _WORK,
    "store.index.file._MAX_SECONDS": _FORMAT,
    "store.log.open_files._MAX_BUSY": _WORK,
    "store.queues.reading._MAX_TRUSTED": _WORK,
    "store.queues.reading._MAX_SPAN": _WORK,
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")


def render() -> str:
    """Return the page's text."""
    return "".join(
        [
            _INTRODUCTION,
            *_settings("Broker", BrokerConfig),
            *_settings("Message store", MessageStoreConfig),
            *_settings("NameServer", NamesrvConfig),
            *_fixed(),
        ]
    )


def undeclared_constants() -> list[str]:
    """Return the MAX constants that are neither in `FIXED` nor in `INTERNAL`."""
    declared = {f"{limit.module}.{limit.name}" for limit in FIXED} | INTERNAL.keys()
    return sorted(set(_max_constants()) - declared)


def vanished_constants() -> list[str]:
    """Return the names in `INTERNAL` that the code no longer has."""
    return sorted(INTERNAL.keys() - set(_max_constants()))


def _settings(title: str, config_class: type) -> Iterator[str]:
    yield f"\n## {title}: settings\n\n"
    yield "| setting | default | limits | a peer that reaches it |\n| --- | --- | --- | --- |\n"
    for item in settings_of(config_class):
        if item.limit:
            live = " *Live.*" if item.live else ""
            cells = (
                f"`{item.key}`",
                f"`{item.format(item.default)}`",
                item.doc + live,
                item.limit,
            )
            yield _row(cells)


def _fixed() -> Iterator[str]:
    yield "\n## Fixed limits\n\n"
    yield "| limit | value | limits | a peer that reaches it |\n| --- | --- | --- | --- |\n"
    for limit in FIXED:
        module = importlib.import_module(f"pyromq.{limit.module}")
        value = getattr(module, limit.name)
        path = limit.module.replace(".", "/") + ".py"
        yield _row((f"`{limit.name}` (`{path}`)", f"`{value:,}`", limit.bounds, limit.effect))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", chr(92) + "|") for cell in cells) + " |\n"


def _max_constants() -> Iterator[str]:
    """Yield every constant whose name has the word MAX, with its module."""
    for package in PACKAGES:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                if isinstance(node, ast.AnnAssign):
                    targets = [node.target]
                for target in targets:
                    if isinstance(target, ast.Name) and "MAX" in target.id.split("_"):
                        yield f"{module}.{target.id}"


if __name__ == "__main__":
    main()
