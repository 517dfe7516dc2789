from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import orjson

from pyromq.broker.handlers.admin.replication import ReplicationAdminHandlers, runtime_figures
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.unit.broker.assembled import AssembledBroker

MASTER: dict[str, Any] = {
    "role": "SYNC_MASTER",
    "brokerId": 0,
    "replicated": 900,
    "replicas": [
        {
            "address": "10.0.0.2:40000",
            "kind": "java",
            "acked": 900,
            "lag_bytes": 100,
            "lag_millis": 7,
        }
    ],
    "following": None,
}


def test_figures_of_a_master() -> None:
    assert runtime_figures(MASTER) == {
        "brokerRole": "SYNC_MASTER",
        "brokerId": "0",
        "replicatedOffset": "900",
        "replicaCount": "1",
        "replica1": "[address: 10.0.0.2:40000, kind: java, at: 900, lagBytes: 100, lagMillis: 7]",
    }


def test_figures_of_a_replica() -> None:
    for master, is_connected in (("10.0.0.1:10912", True), (None, False)):
        figures = {
            **MASTER,
            "role": "SLAVE",
            "brokerId": 2,
            "following": {"master": master, "is_connected": is_connected},
        }
        assert runtime_figures(figures) == {
            "brokerRole": "SLAVE",
            "brokerId": "2",
            "replicationMaster": master or "",
            "replicationConnected": "true" if is_connected else "false",
        }


def test_a_broker_without_replication_has_none() -> None:
    assert runtime_figures({}) == {}


async def test_the_status_is_json(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path)
    parts = dataclasses.replace(broker.parts, replication_figures=lambda: MASTER)
    handlers = ReplicationAdminHandlers(parts)
    request = RemotingCommand(RequestCode.GET_REPLICATION_STATUS)
    answer = handlers.status(broker.fast.connection, request)
    assert orjson.loads(answer.body) == MASTER
    await broker.close()
