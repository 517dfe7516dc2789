from __future__ import annotations

from pathlib import Path

import click
import pytest

from pyromq.cli.brokers.roles import Role, assign, replica, save_role, saved_role

MASTER = Role("SYNC_MASTER", 0)
PROMOTED = Role("ASYNC_MASTER", 0)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The files of a broker and two replicas; none exists."""
    return [tmp_path / name / "config" / "broker.properties" for name in "abc"]


def test_the_first_broker_is_the_master(files: list[Path]) -> None:
    assert assign(files, "SYNC_MASTER") == [MASTER, replica(1), replica(2)]
    assert MASTER.properties() == {"brokerRole": "SYNC_MASTER", "brokerId": "0"}
    assert replica(2).properties() == {"brokerRole": "SLAVE", "brokerId": "2"}
    assert not MASTER.is_replica


def test_a_promoted_broker_stays_the_master(files: list[Path]) -> None:
    save_role(files[2], PROMOTED)
    # The first one takes its place.
    assert assign(files, "SYNC_MASTER") == [replica(2), replica(1), PROMOTED]
    save_role(files[0], replica(2))
    assert assign(files, "SYNC_MASTER") == [replica(2), replica(1), PROMOTED]


def test_a_broker_that_was_master_replica_and_master_again(files: list[Path]) -> None:
    save_role(files[1], replica(1))
    save_role(files[0], PROMOTED)
    assert assign(files, "SYNC_MASTER") == [PROMOTED, replica(1), replica(2)]


def test_two_masters_are_refused(files: list[Path]) -> None:
    save_role(files[0], PROMOTED)
    save_role(files[1], MASTER)
    with pytest.raises(click.ClickException) as caught:
        assign(files, "ASYNC_MASTER")
    assert caught.value.message == (
        f"two brokers of one name would be masters: {files[0]} and {files[1]} both have "
        "brokerId=0; in the file of the one whose last messages you can do without, set "
        "brokerRole=SLAVE and brokerId=1"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "brokerRole=SYNC_MASTER",  # a master that was switched while it ran
        "brokerId=0",
        "brokerRole=SLAVE",
        "brokerRole=SLAVE\nbrokerId=0",
        "brokerRole=SLAVE\nbrokerId=-1",
        "brokerRole=MASTER\nbrokerId=0",
    ],
)
def test_other_settings_are_no_role(files: list[Path], text: str) -> None:
    files[0].parent.mkdir(parents=True)
    files[0].write_text(text)
    assert saved_role(files[0]) is None


def test_other_settings_of_the_file_stay(files: list[Path]) -> None:
    files[0].parent.mkdir(parents=True)
    files[0].write_text("# mine\nfileReservedTime=7\nbrokerId=0\nbrokerRole=ASYNC_MASTER\n")
    save_role(files[0], replica(3))
    assert saved_role(files[0]) == replica(3)
    assert "# mine\nfileReservedTime=7\n" in files[0].read_text()


def test_a_file_that_cannot_be_read_is_named(files: list[Path]) -> None:
    files[0].mkdir(parents=True)
    with pytest.raises(click.ClickException, match=f"cannot read {files[0]}"):
        saved_role(files[0])
    files[1].parent.mkdir(parents=True)
    files[1].write_bytes(b"brokerId=\\u00")
    with pytest.raises(click.ClickException, match=f"{files[1]}: "):
        saved_role(files[1])
