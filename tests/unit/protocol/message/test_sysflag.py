"""The bits equal those of Java."""

from __future__ import annotations

import pytest

from pyromq.protocol.message import sysflag


def test_message_bits() -> None:
    assert (sysflag.COMPRESSED, sysflag.MULTI_TAGS) == (1, 2)
    assert (
        sysflag.TRANSACTION_NOT,
        sysflag.TRANSACTION_PREPARED,
        sysflag.TRANSACTION_COMMIT,
        sysflag.TRANSACTION_ROLLBACK,
    ) == (0, 4, 8, 12)
    assert sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_ROLLBACK
    assert (sysflag.BORN_HOST_V6, sysflag.STORE_HOST_V6) == (16, 32)
    assert sysflag.HOST_MASK == sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6


def test_pull_bits() -> None:
    assert (
        sysflag.PULL_COMMIT_OFFSET,
        sysflag.PULL_SUSPEND,
        sysflag.PULL_SUBSCRIPTION,
        sysflag.PULL_CLASS_FILTER,
    ) == (1, 2, 4, 8)


@pytest.mark.parametrize("other_bits", [0, 0x3, 0x33, ~0xC])
@pytest.mark.parametrize(
    ("kind", "consumable"),
    [
        (sysflag.TRANSACTION_NOT, True),
        (sysflag.TRANSACTION_PREPARED, False),
        (sysflag.TRANSACTION_COMMIT, True),
        (sysflag.TRANSACTION_ROLLBACK, False),
    ],
)
def test_transactions(kind: int, consumable: bool, other_bits: int) -> None:
    assert sysflag.transaction_type(kind | other_bits) == kind
    assert sysflag.is_consumable(kind | other_bits) is consumable


@pytest.mark.parametrize(
    ("perm", "readable", "writable"),
    [
        (0, False, False),
        (sysflag.PERM_INHERIT, False, False),
        (sysflag.PERM_WRITE, False, True),
        (sysflag.PERM_READ, True, False),
        (sysflag.PERM_READ | sysflag.PERM_WRITE, True, True),
        (7, True, True),
    ],
)
def test_permissions(perm: int, readable: bool, writable: bool) -> None:
    assert sysflag.is_readable(perm) is readable
    assert sysflag.is_writable(perm) is writable


def test_permissions_equal_java() -> None:
    assert (sysflag.PERM_READ, sysflag.PERM_WRITE, sysflag.PERM_INHERIT) == (4, 2, 1)
