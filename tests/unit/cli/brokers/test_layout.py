from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import click
import pytest

from pyromq.cli.brokers.layout import (
    MAX_BROKERS,
    PORT_DISTANCE,
    Place,
    plan,
    plan_raft,
    with_metrics_ports,
)

NAMESRV = 9876


def a_store(directory: Path, *, messages: bool = True) -> Path:
    (directory / "config").mkdir(parents=True)
    if messages:
        (directory / "commitlog").mkdir()
        (directory / "commitlog" / "00000000000000000000").touch()
    return directory


def refused(
    count: int, root: Path, port: int = 10911, properties: Mapping[str, str] = MappingProxyType({})
) -> str:
    with pytest.raises(click.ClickException) as caught:
        plan(count, root, port, properties, NAMESRV)
    return caught.value.message


def test_one_broker_keeps_its_data_in_the_directory_itself(tmp_path: Path) -> None:
    assert plan(1, tmp_path, 10911, {}, NAMESRV) == [Place(None, tmp_path, 10911)]
    a_store(tmp_path)
    (place,) = plan(1, tmp_path, 0, {"brokerName": "mine"}, NAMESRV)
    assert place == Place(None, tmp_path, 0)
    assert place.properties() == {"storePathRootDir": str(tmp_path), "listenPort": "0"}


def test_several_brokers_have_directories_names_and_ports_of_their_own(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    places = plan(3, missing, 10911, {}, NAMESRV)
    assert [place.name for place in places] == ["broker-0", "broker-1", "broker-2"]
    assert [place.directory.name for place in places] == ["broker-0", "broker-1", "broker-2"]
    assert [place.port for place in places] == [10911, 10915, 10919]
    assert places[1].properties() == {
        "storePathRootDir": str(missing / "broker-1"),
        "listenPort": "10915",
        "brokerName": "broker-1",
    }
    assert not missing.exists()
    named = plan(2, tmp_path, 0, {"brokerName": "eu"}, NAMESRV)
    assert [(place.name, place.port) for place in named] == [("eu-0", 0), ("eu-1", 0)]


def test_no_port_belongs_to_two_brokers(tmp_path: Path) -> None:
    """Each uses its own, the VIP channel's below and the replicas' above."""
    ports = [place.port for place in plan(MAX_BROKERS, tmp_path, 10911, {}, NAMESRV)]
    used = [each + offset for each in ports for offset in (-2, 0, 1)]
    assert len(set(used)) == len(used)
    assert ports[1] - ports[0] == PORT_DISTANCE


def test_a_store_of_one_broker_becomes_the_first_of_several(tmp_path: Path) -> None:
    a_store(tmp_path, messages=False)
    first, second = plan(2, tmp_path, 10911, {}, NAMESRV)
    assert (first.name, first.directory) == (None, tmp_path)
    assert (second.name, second.directory) == ("broker-1", tmp_path / "broker-1")


def test_a_single_broker_serves_the_first_of_several_if_the_others_are_gone(
    tmp_path: Path,
) -> None:
    a_store(tmp_path / "broker-0")
    a_store(tmp_path / "broker-1", messages=False)
    assert plan(1, tmp_path, 10911, {}, NAMESRV) == [
        Place("broker-0", tmp_path / "broker-0", 10911)
    ]


def test_stores_that_would_not_be_served_are_refused(tmp_path: Path) -> None:
    for number in range(12):
        a_store(tmp_path / f"broker-{number}")
    message = refused(9, tmp_path)
    assert message == (
        f"9 brokers would not serve the messages in {tmp_path}/broker-9, {tmp_path}/broker-10, "
        f"{tmp_path}/broker-11: start with --brokers 12, or move what you do not need elsewhere"
    )
    assert "broker-1, " in refused(1, tmp_path)
    assert len(plan(12, tmp_path, 10911, {}, NAMESRV)) == 12


def test_two_stores_for_the_first_broker_are_refused(tmp_path: Path) -> None:
    a_store(tmp_path)
    a_store(tmp_path / "broker-0")
    for count in (1, 2):
        assert "itself holds the store of the first broker" in refused(count, tmp_path)


def test_directories_with_other_names_do_not_matter(tmp_path: Path) -> None:
    for name in ("broker-01", "broker--1", "broker-x", "my-broker-7", f"broker-{'9' * 30}"):
        a_store(tmp_path / name)
    (tmp_path / "broker-5").touch()
    assert len(plan(2, tmp_path, 10911, {}, NAMESRV)) == 2
    a_store(tmp_path / "broker-4711")
    assert "--brokers" not in refused(2, tmp_path)


@pytest.mark.parametrize("key", ["storePathCommitLog", "readOnlyCommitLogStorePaths"])
def test_settings_that_would_share_files_are_refused(tmp_path: Path, key: str) -> None:
    message = refused(2, tmp_path, properties={key: "/disk"})
    assert message.startswith(f"{key} cannot be combined with --brokers 2: ")
    assert len(plan(1, tmp_path, 10911, {key: "/disk"}, NAMESRV)) == 1


def test_ports_out_of_range_are_refused(tmp_path: Path) -> None:
    assert "need ports up to 65536" in refused(2, tmp_path, 65531)
    assert len(plan(2, tmp_path, 65530, {}, NAMESRV)) == 2


@pytest.mark.parametrize("port", [NAMESRV - 4, NAMESRV - 1, NAMESRV + 2, NAMESRV - 2])
def test_a_port_of_the_nameserver_is_refused(tmp_path: Path, port: int) -> None:
    assert f"needs port {NAMESRV}, which is the NameServer's" in refused(2, tmp_path, port)


def test_replicas_have_directories_and_ports_behind_those_of_the_brokers(tmp_path: Path) -> None:
    places = plan(2, tmp_path, 10911, {}, NAMESRV, replicas=2)
    assert [(place.name, place.directory.name, place.port) for place in places] == [
        ("broker-0", "broker-0", 10911),
        ("broker-1", "broker-1", 10915),
        ("broker-0", "broker-0-replica-1", 10919),
        ("broker-0", "broker-0-replica-2", 10923),
        ("broker-1", "broker-1-replica-1", 10927),
        ("broker-1", "broker-1-replica-2", 10931),
    ]
    assert [(place.number, place.replica) for place in places[1:4]] == [(1, 0), (0, 1), (0, 2)]


def test_the_replica_of_a_single_broker_shares_its_name(tmp_path: Path) -> None:
    broker, replica = plan(1, tmp_path, 10911, {}, NAMESRV, replicas=1)
    assert broker == Place(None, tmp_path, 10911)
    assert replica == Place(None, tmp_path / "broker-0-replica-1", 10915, 0, 1)
    assert "brokerName" not in replica.properties()


def test_replicas_that_would_not_run_are_refused(tmp_path: Path) -> None:
    a_store(tmp_path)
    replica = a_store(tmp_path / "broker-0-replica-1")
    assert refused(1, tmp_path) == (
        f"1 broker without replicas would not serve the messages in {replica}: start with "
        "--replicas 1, or move what you do not need elsewhere"
    )
    assert len(plan(1, tmp_path, 10911, {}, NAMESRV, replicas=1)) == 2
    last = a_store(tmp_path / "broker-2-replica-2")
    with pytest.raises(click.ClickException) as caught:
        plan(1, tmp_path, 10911, {}, NAMESRV, replicas=1)
    assert caught.value.message == (
        f"1 broker with 1 replicas each would not serve the messages in {last}: start with "
        "--brokers 3 --replicas 2, or move what you do not need elsewhere"
    )
    a_store(tmp_path / "broker-0-replica-99")
    assert "--replicas" not in refused(3, tmp_path)


def test_settings_and_ports_that_replicas_would_share_are_refused(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="cannot be combined with --replicas 1"):
        plan(1, tmp_path, 10911, {"storePathCommitLog": "/disk"}, NAMESRV, replicas=1)
    with pytest.raises(click.ClickException, match="which is the NameServer's"):
        plan(1, tmp_path, NAMESRV - 4, {}, NAMESRV, replicas=1)


def raft(root: Path, count: int = 3, port: int = 10911, **properties: str) -> list[Place]:
    return plan_raft(count, root, "127.0.0.1", port, properties, NAMESRV)


def test_the_nodes_of_a_raft_group(tmp_path: Path) -> None:
    places = raft(tmp_path)
    assert [place.directory.name for place in places] == ["raft-n0", "raft-n1", "raft-n2"]
    assert [place.port for place in places] == [10911, 10915, 10919]
    assert {place.name for place in places} == {"broker-0"}
    assert places[1].properties() == {
        "storePathRootDir": str(tmp_path / "raft-n1"),
        "listenPort": "10915",
        "brokerName": "broker-0",
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "broker-0",
        "dLegerPeers": "n0-127.0.0.1:10912;n1-127.0.0.1:10916;n2-127.0.0.1:10920",
        "dLegerSelfId": "n1",
    }
    named = raft(tmp_path, brokerName="shop", dLegerGroup="group")
    assert named[0].properties()["dLegerGroup"] == "group"
    assert named[0].name == "shop"


def test_free_ports_of_a_raft_group_differ(tmp_path: Path) -> None:
    (peers,) = {place.raft["dLegerPeers"] for place in raft(tmp_path, port=0)}
    ports = [int(peer.rpartition(":")[2]) for peer in peers.split(";")]
    assert len(set(ports)) == 3
    assert all(ports)


@pytest.mark.parametrize("key", ["dLegerPeers", "dLegerSelfId", "storePathCommitLog"])
def test_settings_that_a_raft_group_makes_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(click.ClickException, match=f"{key} cannot be combined with --raft 3"):
        plan_raft(3, tmp_path, "127.0.0.1", 10911, {key: "x"}, NAMESRV)


def test_a_raft_group_beside_other_stores_is_refused(tmp_path: Path) -> None:
    for name in ("broker-0", "broker-1-replica-1"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
        (tmp_path / name / "commitlog" / f"{0:020d}").touch()
    with pytest.raises(click.ClickException, match=r"would not serve the messages in .*/broker-0,"):
        raft(tmp_path)


def test_the_number_of_nodes_does_not_change(tmp_path: Path) -> None:
    for number in (0, 2):  # n1 was removed, to be filled again
        data = tmp_path / f"raft-n{number}" / f"dledger-n{number}" / "data"
        data.mkdir(parents=True)
        (data / f"{0:020d}").touch()
    raft(tmp_path)
    with pytest.raises(click.ClickException, match="has 3 nodes, and another number could lose"):
        raft(tmp_path, 2)
    with pytest.raises(click.ClickException, match="of a raft group: start with --raft 3"):
        plan(1, tmp_path, 10911, {}, 9876)


def test_each_broker_has_a_port_for_metrics(tmp_path: Path) -> None:
    places = plan(3, tmp_path, 10911, {}, 9876)
    assert "metricsPromExporterPort" not in places[0].properties()
    counted = with_metrics_ports(places, 5557)
    ports = [each.properties()["metricsPromExporterPort"] for each in counted]
    assert ports == ["5557", "5558", "5559"]
    assert with_metrics_ports(places, 0) == places
    with pytest.raises(click.ClickException, match="metricsPromExporterPort=65534"):
        with_metrics_ports(places, 65534)
