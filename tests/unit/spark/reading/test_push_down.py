"""Which versions of Spark may push filters down."""

from __future__ import annotations

import pyspark

from pyromq.spark.reading.push_down import is_safe


def test_no_known_version_is_safe() -> None:
    assert not is_safe(pyspark.__version__)
    assert not is_safe("4.1.0")


def test_a_fixed_version_and_later_ones_are_safe() -> None:
    assert not is_safe("4.3.9", since=(4, 4))
    assert is_safe("4.4.0", since=(4, 4))
    assert is_safe("4.10.0.dev1", since=(4, 4))
    assert is_safe("5.0", since=(4, 4))


def test_an_unreadable_version_is_not_safe() -> None:
    assert not is_safe("unknown", since=(4, 4))
