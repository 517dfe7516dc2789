from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.persistence import PersistenceError, TableFile
from pyromq.broker.state.tables import BrokerTables
from pyromq.protocol.wire.bodies import SubscriptionGroupConfig, TopicConfig
from tests.support.brokers import small_store

CONFIG = BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")


def tables_of(root: Path) -> BrokerTables:
    tables = BrokerTables.of(CONFIG, small_store(root))
    tables.load()
    return tables


async def test_closed_tables_are_loaded_again(tmp_path: Path) -> None:
    tables = tables_of(tmp_path)
    tables.topics.update(TopicConfig("T", 4, 4))
    tables.groups.update(SubscriptionGroupConfig("g"))
    tables.offsets.commit("g", "T", 0, 7)
    await tables.close()

    again = tables_of(tmp_path)

    assert "T" in again.topics
    assert again.groups.get("g") is not None
    assert again.offsets.query("g", "T", 0) == 7


async def test_a_failed_save_does_not_affect_other_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(tmp_path)
    tables.offsets.commit("g", "T", 0, 7)
    close = TableFile.close

    async def fail_for_topics(file: TableFile) -> None:
        if file is tables.topics.file:
            raise PersistenceError("the disk is full")
        await close(file)

    monkeypatch.setattr(TableFile, "close", fail_for_topics)
    with pytest.raises(PersistenceError, match="the disk is full"):
        await tables.close()

    monkeypatch.undo()
    assert tables_of(tmp_path).offsets.query("g", "T", 0) == 7


async def test_failed_saves_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(tmp_path)
    retried: list[TableFile] = []
    monkeypatch.setattr(TableFile, "save_if_failed", lambda file: retried.append(file))

    tables.retry_failed_saves()

    assert len(retried) == 6
    assert tables.delay_offsets.file in retried
