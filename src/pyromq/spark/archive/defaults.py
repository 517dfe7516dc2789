"""Defaults and choices of the archive jobs, for `--help` texts that do not load Spark."""

from __future__ import annotations

from typing import Final

from pyromq.base.sizes import MIB

#: zstd, but for bodies zstd or snappy, depending on a sample.
AUTO: Final = "auto"
COMPRESSIONS: Final = (AUTO, "zstd", "snappy", "none")
#: The two forms of the column `properties`, as in `columns`.
PROPERTIES: Final = ("raw", "map")

MAX_RECORDS: Final = 4_000_000
FILE_BYTES: Final = 512 * MIB
TARGET_BYTES: Final = 256 * MIB
