"""Whether Spark may push a query's filters down to the source, decided by Spark's version.

Spark keeps the partitions of a Python source with the source object, one for each `load()`. When
filters are pushed, the partitions that they left replace those that are kept, and every later query
on the same DataFrame, view or join reads them: wrong rows, without an error. All versions with
push-down (4.1 to 4.3) do so. On such a version the source takes no part, in whatever session it is
used: `batch.batch_reader` makes a reader without `pushFilters`. The option `where` saves the same
work safely (`conditions`).

tests/spark/test_reuse.py fails with the first version of Spark that is cured.
"""

from __future__ import annotations

import re
from typing import Final

#: Spark's setting.
CONF: Final = "spark.sql.python.filterPushdown.enabled"
#: The first version, as (4, 4), that keeps the partitions of each scan apart; None: not known yet.
SAFE_SINCE: Final[tuple[int, int] | None] = None


def is_safe(version: str, since: tuple[int, int] | None = SAFE_SINCE) -> bool:
    """Whether pruned partitions stay with their query in this version of Spark."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if since is None or found is None:
        return False
    return (int(found[1]), int(found[2])) >= since
