from __future__ import annotations

from pyromq.spark.archive import defaults
from pyromq.spark.archive.archiver import ArchiveOptions, Topics
from pyromq.spark.archive.compactor import CompactOptions
from pyromq.spark.archive.files import FileSettings
from pyromq.spark.columns import MAP, RAW


def test_the_jobs_use_them() -> None:
    assert ArchiveOptions(Topics(("A",))).max_records == defaults.MAX_RECORDS
    assert CompactOptions().target_bytes == defaults.TARGET_BYTES
    assert FileSettings().file_bytes == defaults.FILE_BYTES
    assert FileSettings().compression in defaults.COMPRESSIONS
    assert defaults.PROPERTIES == (RAW, MAP)
