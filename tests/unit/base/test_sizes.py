from __future__ import annotations

from pyromq.base.sizes import GIB, KIB, MIB


def test_units_are_powers_of_two() -> None:
    assert [KIB, MIB, GIB] == [2**10, 2**20, 2**30]
