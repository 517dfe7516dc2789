"""How many examples hypothesis tries: some in `make test`, many in `make soak`."""

from __future__ import annotations

import os


def examples(number: int) -> int:
    """Around `number` in the end: a third of it in each run, ten times as many in a soak."""
    return 10 * number if os.environ.get("PYROMQ_SOAK") else max(1, number // 3)
