"""What all peers together may take: the counts themselves; sockets are in test_server_limits."""

from __future__ import annotations

import resource

import pytest

from pyromq.remoting.limits import (
    MIN_BYTES_PER_SECOND,
    Budget,
    Holding,
    PeerLimits,
    possible_connections,
)


class Peer:
    def __init__(self, budget: Budget, name: str) -> None:
        self.budget, self.name = budget, name
        self.unsent = 0
        self.reasons: list[str] = []

    def give_up(self, setting: str, reason: str) -> None:
        self.reasons.append(f"{reason} ({setting})")
        self.budget.hold(self, 0, 0.0)


def test_bytes_are_summed_up_and_given_back() -> None:
    budget = Budget("bytes", 1000, "maxBytes")
    one, other = Peer(budget, "one"), Peer(budget, "other")
    budget.hold(one, 300, 1.0)
    budget.hold(other, 200, 2.0)
    budget.hold(one, 400, 3.0)
    assert budget.total == 600
    assert dict(budget) == {one: Holding(400, 1.0), other: Holding(200, 2.0)}
    budget.hold(one, 50, 4.0, restart=True)
    assert dict(budget)[one] == Holding(50, 4.0)
    budget.hold(one, 0, 5.0)
    budget.hold(one, 0, 5.0)
    assert budget.total == 200


def test_those_who_hold_the_most_for_the_longest_time_go_first() -> None:
    budget = Budget("unread responses", 1000, "maxUnsentBytes")
    old, large, young = (Peer(budget, name) for name in ("old", "large", "young"))
    budget.hold(old, 200, 0.0)
    budget.hold(large, 500, 50.0)
    budget.hold(young, 400, 99.9)
    assert budget.total == 600
    assert not old.reasons
    assert not young.reasons
    [reason] = large.reasons
    assert reason == (
        "has held 500 bytes of unread responses for 49.9 s; all connections hold 1100, "
        "limit 1000 (maxUnsentBytes)"
    )
    budget.hold(young, 1001, 100.0)
    assert old.reasons
    assert young.reasons
    assert budget.total == 0


def test_a_budget_that_measures_closes_nobody_whose_bytes_have_left() -> None:
    budget = Budget("unread responses", 1000, "maxUnsentBytes", lambda peer: peer.unsent)
    reads, reads_not = Peer(budget, "reads"), Peer(budget, "reads not")
    reads_not.unsent = 700
    budget.hold(reads_not, 700, 1.0)
    reads.unsent = 900
    budget.hold(reads, 200, 2.0)
    budget.hold(reads, 300, 3.0)
    reads.unsent = 0
    budget.hold(reads, 400, 3.0)
    assert budget.total == 700
    assert not reads.reasons
    assert not reads_not.reasons


def test_without_a_limit_nobody_is_closed() -> None:
    budget = Budget("bytes", 0, "maxBytes")
    peer = Peer(budget, "peer")
    budget.hold(peer, 1 << 40, 1.0)
    assert not peer.reasons


def test_connections_are_counted_in_total_and_by_address() -> None:
    limits = PeerLimits(max_connections=10, max_connections_per_address=3)
    assert [limits.admit("a") for _ in range(3)] == [None] * 3
    assert limits.admit("a") == (
        "maxConnectionsPerAddress",
        "3 connections from this address, limit 3",
    )
    assert [limits.admit(each) for each in "bcdefgh"] == [None] * 7
    assert limits.admit("i") == ("maxConnections", "10 connections, limit 10")
    limits.leave("a")
    assert limits.admit("i") is None
    for each in "aabcdefghi":
        limits.leave(each)
    assert limits.connections == 0
    assert not limits._by_address


@pytest.mark.parametrize("per_address", [0, 1000])
def test_one_address_cannot_take_all_connections(per_address: int) -> None:
    limits = PeerLimits(max_connections=100, max_connections_per_address=per_address)
    assert sum(limits.admit("a") is None for _ in range(200)) == 90
    assert limits.admit("b") is None


def test_no_limit_is_no_limit() -> None:
    limits = PeerLimits()
    assert all(limits.admit("a") is None for _ in range(100_000))


def test_a_frame_has_a_minute_and_the_time_of_its_bytes() -> None:
    limits = PeerLimits(frame_seconds=60)
    assert not limits.is_too_slow(Holding(1, 0.0), 59.0)
    assert limits.is_too_slow(Holding(1, 0.0), 61.0)
    assert not limits.is_too_slow(Holding(10 * MIN_BYTES_PER_SECOND, 0.0), 69.0)
    assert limits.is_too_slow(Holding(10 * MIN_BYTES_PER_SECOND, 0.0), 71.0)
    assert not PeerLimits(frame_seconds=0).is_too_slow(Holding(1, 0.0), 1e9)


@pytest.mark.parametrize(
    ("descriptors", "wanted", "reserved", "possible"),
    [
        (8192, 20_000, 2000, 6192),
        (8192, 5000, 2000, 5000),
        (1024, 0, 336, 688),
        (100, 0, 336, 1),
        (resource.RLIM_INFINITY, 20_000, 336, 20_000),
    ],
)
def test_files_keep_their_descriptors(
    descriptors: int, wanted: int, reserved: int, possible: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert possible_connections(wanted, reserved) == possible
