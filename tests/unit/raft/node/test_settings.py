from __future__ import annotations

from pathlib import Path

from pyromq.raft.member import Settings
from pyromq.raft.node.settings import MAX_BYTES_IN_FLIGHT, NodeSettings

PEERS = {"n0": ("h0", 1), "n1": ("h1", 2)}


def test_the_core_gets_what_it_needs(tmp_path: Path) -> None:
    settings = NodeSettings(
        group="g",
        self_id="n1",
        peers=PEERS,
        directory=tmp_path,
        preferred_leaders=("n0",),
        batch_push=True,
        flush_before_ack=True,
    )
    assert settings.core_settings() == Settings(
        group="g",
        self_id="n1",
        peers=("n0", "n1"),
        preferred_leaders=("n0",),
        batch_push=True,
        flush_before_ack=True,
        max_bytes_in_flight=MAX_BYTES_IN_FLIGHT,
    )


def test_a_test_may_change_the_core(tmp_path: Path) -> None:
    core = {"heartbeat_interval": 5, "max_bytes_in_flight": 7}
    settings = NodeSettings(
        group="g", self_id="n0", peers=PEERS, directory=tmp_path, core=core
    ).core_settings()
    assert (settings.heartbeat_interval, settings.max_bytes_in_flight) == (5, 7)
