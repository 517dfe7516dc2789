"""How many examples hypothesis tries: some in `make test`, many in `make soak`."""

from __future__ import annotations

import os


def examples(number: int) -> int:
    """Around `number` in the end: a third of it in each run, ten times as many in a soak."""
    return 10 * number if is_soak() else max(1, number // 3)


def is_soak() -> bool:
    """Whether this run is one of `make soak`."""
    return bool(os.environ.get("PYROMQ_SOAK"))
