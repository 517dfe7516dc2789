from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.base.settings import ConfigError
from pyromq.store.config import MessageStoreConfig

GROUP = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "RaftNode00",
    "dLegerPeers": "n0-10.0.0.1:40911;n1-host.example-net:40912;n2-10.0.0.3:40913",
    "dLegerSelfId": "n1",
}


def load(**changes: str | None) -> MessageStoreConfig:
    values = {**GROUP, **changes}
    table = {key: value for key, value in values.items() if value is not None}
    config, others = MessageStoreConfig.load({**table, "storePathRootDir": "/store"})
    assert others == []
    return config


def test_a_node_of_a_group() -> None:
    config = load()
    assert config.raft_id == "n1"
    assert config.raft_broker_id == 2
    assert config.raft_peers == {
        "n0": ("10.0.0.1", 40911),
        "n1": ("host.example-net", 40912),
        "n2": ("10.0.0.3", 40913),
    }
    assert config.raft_directory == Path("/store/dledger-n1")
    assert config.raft_data_directory is None
    assert config.preferred_leaders == ()
    assert not config.pushes_batches
    assert not config.dleger_flush_before_ack


def test_further_settings() -> None:
    config = load(
        preferredLeaderId=" n2 ;n0;",
        storePathDLedgerCommitLog="/disk2/data",
        dLegerFlushBeforeAck="true",
    )
    assert config.preferred_leaders == ("n2", "n0")
    assert config.raft_data_directory == Path("/disk2/data")
    assert config.dleger_flush_before_ack
    # Java reads the one and saves the other.
    assert load(enableBatchPush="true").pushes_batches
    assert load(isEnableBatchPush="true").pushes_batches


def test_other_brokers_are_not_in_a_group() -> None:
    config = MessageStoreConfig()
    assert not config.enable_dleger_commit_log
    assert config.raft_id == ""
    # Java ignores the keys then; so a wrong one does no harm.
    MessageStoreConfig.load({"dLegerPeers": "nonsense", "dLegerSelfId": "7"})


@pytest.mark.parametrize("key", ["dLegerGroup", "dLegerPeers", "dLegerSelfId"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_key_is_named(key: str, value: str | None) -> None:
    with pytest.raises(ConfigError, match=f"{key} is not set: enableDLegerCommitLog=true needs it"):
        load(**{key: value})


@pytest.mark.parametrize(
    ("peers", "part"),
    [
        ("nonsense", "nonsense"),
        ("n0", "n0"),
        ("n0-10.0.0.1", "n0-10.0.0.1"),
        ("n0-:40911", "n0-:40911"),
        ("n0-10.0.0.1:", "n0-10.0.0.1:"),
        ("n0-10.0.0.1:port", "n0-10.0.0.1:port"),
        ("n0-10.0.0.1:65536", "n0-10.0.0.1:65536"),
        ("n0-10.0.0.1:-1", "n0-10.0.0.1:-1"),
        ("n0-10.0.0.1:٣", "n0-10.0.0.1"),
        ("0-10.0.0.1:40911", "0-10.0.0.1:40911"),
        ("n-10.0.0.1:40911", "n-10.0.0.1:40911"),
        ("n01-10.0.0.1:40911", "n01-10.0.0.1:40911"),
        ("node0-10.0.0.1:40911", "node0-10.0.0.1:40911"),
        ("n1234567890-10.0.0.1:40911", "n1234567890-10.0.0.1:40911"),
        ("n0-10.0.0.1:40911;;n1-10.0.0.2:40911", ""),
        ("n1-10.0.0.1:40911;n1-10.0.0.2:40911", "n1-10.0.0.2:40911"),
        (" ", ""),
    ],
)
def test_bad_peers_are_named(peers: str, part: str) -> None:
    with pytest.raises(ConfigError, match=r"dLegerPeers=.*expected nodes such as") as caught:
        load(dLegerPeers=peers)
    assert part in str(caught.value)


def test_spaces_around_a_node_are_allowed() -> None:
    config = load(dLegerPeers="n0-10.0.0.1:40911 ; n1-10.0.0.2:40911")
    assert list(config.raft_peers) == ["n0", "n1"]


@pytest.mark.parametrize("node", ["n3", "N1", "1", "n1;n2"])
def test_an_id_that_is_none_of_the_peers_is_refused(node: str) -> None:
    with pytest.raises(ConfigError, match=r"dLegerSelfId=.*expected one of dLegerPeers, n0, n1"):
        load(dLegerSelfId=node)


def test_a_preferred_leader_is_one_of_the_peers() -> None:
    with pytest.raises(ConfigError, match=r"preferredLeaderId=.*n7.* is none of dLegerPeers"):
        load(preferredLeaderId="n0;n7")
