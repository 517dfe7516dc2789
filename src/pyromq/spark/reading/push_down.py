"""Decide by Spark's version whether the source accepts filters by push-down.

Spark caches the partitions of a Python source with the source object, one for each `load()`. With
push-down, the partitions that one query's filters left replace the cached ones, and every later
query on the same DataFrame, view or join reads those: wrong rows, without an error. All versions
with push-down (4.1 to 4.3) have this bug. On these versions `batch.batch_reader` returns a reader
without `pushFilters`, in any session. The option `where` saves the same work safely
(`conditions`).

tests/spark/test_reuse.py fails with the first version of Spark that fixes it.
"""

from __future__ import annotations

import re
from typing import Final

#: Spark's setting for push-down.
CONF: Final = "spark.sql.python.filterPushdown.enabled"
#: The first fixed version, such as (4, 4); None: there is none yet.
SAFE_SINCE: Final[tuple[int, int] | None] = None


def is_safe(version: str, since: tuple[int, int] | None = SAFE_SINCE) -> bool:
    """Return whether this version of Spark keeps the partitions of each query apart."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if since is None or found is None:
        return False
    return (int(found[1]), int(found[2])) >= since
