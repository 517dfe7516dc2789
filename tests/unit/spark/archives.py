"""Archives whose files contain one word, for tests of commits."""

from __future__ import annotations

from pyromq.spark.archive.directory import ArchiveDirectory, StagedFile
from pyromq.spark.archive.manifest import ARCHIVE, COMPACT

HOUR = "2026-11-16-05"
NEXT_HOUR = "2026-11-16-06"


def stage(archive: ArchiveDirectory, *contents: str, kind: str = ARCHIVE) -> list[StagedFile]:
    """Write files as tasks do; those to archive alternate between two hours."""
    staging = archive.new_staging(kind)
    staged = []
    for number, content in enumerate(contents):
        path = staging / f"{number}.staged"
        path.write_text(content)
        hour = HOUR if kind == COMPACT or number % 2 == 0 else NEXT_HOUR
        staged.append(StagedFile("Orders", hour, str(path), len(content), len(content)))
    return staged


def contents(archive: ArchiveDirectory) -> list[str]:
    """Return the contents that a reader of the directory sees, in order."""
    return sorted(path.read_text() for path in archive.path.glob("topic=*/hour=*/*.parquet"))
