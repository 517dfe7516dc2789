from __future__ import annotations

from bench.acl import ACCESS_KEY, SECRET_KEY, _pull_ring, _send_ring, render
from pyromq.acl.rules import Account
from pyromq.acl.signature import is_signed_by
from pyromq.protocol.wire.frame import command_from, split_frames


def test_requests_are_signed() -> None:
    account = Account(ACCESS_KEY, SECRET_KEY)
    for ring in (_send_ring(0, 1), _pull_ring(1, 64)):
        ring.start_lap(7)
        frames, _, error = split_frames(bytes(ring.data))
        assert error is None
        assert len(frames) == ring.frames
        for command in map(command_from, frames[:10]):
            assert is_signed_by(account, command.ext_fields, command.body)


def test_the_table_and_the_bound() -> None:
    figures = {("pyromq", False): {"send": 2.0}, ("pyromq", True): {"send": 2.2}}
    table, is_met = render(figures)
    assert is_met
    assert "| pyromq | send | 2.00 | 2.20 | 1.10 |" in table
    assert not render({**figures, ("pyromq", True): {"send": 2.4}})[1]
    java = {("java", False): {"send": 2.0}, ("java", True): {"send": 9.0}}
    assert render(java)[1]
