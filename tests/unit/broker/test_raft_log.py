from __future__ import annotations

from pathlib import Path

from pyromq.broker.raft_log import node_settings, open_log
from pyromq.store.config import MessageStoreConfig
from tests.support.records import make_record

SEGMENT = 64 * 1024


def config_of(root: Path, **changes: str) -> MessageStoreConfig:
    table = {
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": str(SEGMENT),
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "group",
        "dLegerPeers": "n0-10.0.0.1:40911;n1-10.0.0.2:40911",
        "dLegerSelfId": "n1",
        **changes,
    }
    return MessageStoreConfig.load(table)[0]


def test_the_settings_of_a_node(tmp_path: Path) -> None:
    settings = node_settings(config_of(tmp_path), {}, "127.0.0.1")
    assert (settings.group, settings.self_id) == ("group", "n1")
    assert settings.peers == {"n0": ("10.0.0.1", 40911), "n1": ("10.0.0.2", 40911)}
    assert settings.directory == tmp_path / "dledger-n1"
    assert settings.listen_host == "127.0.0.1"
    assert (settings.preferred_leaders, settings.batch_push) == ((), False)
    assert not settings.flush_before_ack
    assert settings.core_settings().heartbeat_interval == 2000
    settings = node_settings(
        config_of(
            tmp_path, preferredLeaderId="n0", enableBatchPush="true", dLegerFlushBeforeAck="true"
        ),
        {"heartbeat_interval": 100},
        "0.0.0.0",
    )
    assert (settings.preferred_leaders, settings.batch_push) == (("n0",), True)
    assert settings.flush_before_ack
    assert settings.core_settings().heartbeat_interval == 100


def test_the_files_are_where_java_has_them(tmp_path: Path) -> None:
    log = open_log(config_of(tmp_path), 2 * SEGMENT)
    log.start()
    log.append_bodies(1, [b"body"])
    log.stop()
    assert (tmp_path / "dledger-n1" / "data" / f"{2 * SEGMENT:020d}").stat().st_size == SEGMENT
    other = tmp_path / "disk2"
    log = open_log(config_of(tmp_path, storePathDLedgerCommitLog=str(other)), 0)
    log.start()
    log.append_bodies(1, [b"body"])
    log.stop()
    assert (other / f"{0:020d}").exists()


def test_a_damaged_record_after_a_crash_ends_the_log(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    log = open_log(config, 0)
    log.start()
    whole = make_record(body=b"whole")
    damaged = bytearray(whole)
    damaged[damaged.index(b"whole")] ^= 1
    log.append_bodies(1, [whole, bytes(damaged), whole])
    log.flush()  # and no checkpoint: the process was killed
    log.files.stop()
    again = open_log(config, 0)
    again.start()
    assert again.end_index == 0
    again.stop()
