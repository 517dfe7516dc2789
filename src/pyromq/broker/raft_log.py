"""A broker's settings as its raft node needs them, and the log that its store keeps there.

Called by the broker at its start.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.protocol.message.record import RecordError, body_crc, decode_record
from pyromq.raft.log import RaftLog
from pyromq.raft.node import NodeSettings
from pyromq.store.config import MessageStoreConfig
from pyromq.tls.server import ServerTls


def open_log(config: MessageStoreConfig, first_position: int) -> RaftLog:
    """Return the log of the node, which is not started. A new one begins at `first_position`."""
    return RaftLog(
        config.raft_directory,
        data_file_size=config.mapped_file_size_commit_log,
        data_directory=config.raft_data_directory,
        first_position=first_position,
        check_body=_is_whole_record,
    )


def node_settings(
    config: MessageStoreConfig,
    timing: Mapping[str, int],
    listen_host: str,
    tls: ServerTls | None = None,
) -> NodeSettings:
    """Return the settings of the node; `timing` replaces intervals of the core."""
    return NodeSettings(
        group=config.dleger_group or "",
        self_id=config.raft_id,
        peers=config.raft_peers,
        directory=config.raft_directory,
        preferred_leaders=config.preferred_leaders,
        batch_push=config.pushes_batches,
        flush_before_ack=config.dleger_flush_before_ack,
        listen_host=listen_host,
        allowed_peers=config.allowed_raft_peers,
        tls=tls,
        core=dict(timing),
    )


def _is_whole_record(body: memoryview) -> bool:
    """Whether the body of an entry is a record with the right checksum."""
    try:
        record = decode_record(body)
    except RecordError:
        return False
    return record.body_crc == body_crc(record.body)
