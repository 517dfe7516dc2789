"""Responses that wait for their peer: in order, and counted."""

from __future__ import annotations

from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.parked import ParkedResponses


def test_oldest_first_and_counted() -> None:
    parked = ParkedResponses()
    pairs = [(RemotingCommand(n), RemotingCommand(0, body=bytes(n))) for n in (3, 5)]
    for request, response in pairs:
        parked.add(request, response)

    assert (len(parked), parked.size) == (2, 8)
    assert parked.take() == pairs[0]
    assert (len(parked), parked.size) == (1, 5)
    parked.clear()
    assert (len(parked), parked.size) == (0, 0)
