"""Read a backup again: sizes, checksums, and whether its log ends with a whole record.

Called by `pyromq store backup --verify` and `pyromq store backups verify`, on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyromq.store.backup.copying import Meter, hash_file
from pyromq.store.backup.manifest import ENTRY_DIRECTORY, LOG_DIRECTORY, FileFacts
from pyromq.store.backup.repository import Backup
from pyromq.store.backup.source import valid_end
from pyromq.store.offline.check_files import SegmentFiles


def verify_backup(backup: Backup, meter: Meter) -> Iterator[str]:
    """Yield a sentence for each file that is not as the manifest says."""
    manifest = backup.manifest
    meter.total += manifest.size
    damaged = False
    for file in manifest.files:
        problem = _problem(backup, file, meter)
        if problem is not None:
            damaged = True
            yield f"{backup.directory / file.path}: {problem}"
    known = {file.path for file in manifest.files}
    for name in (LOG_DIRECTORY, ENTRY_DIRECTORY):
        for path in sorted((backup.directory / name).glob("*")):
            if f"{name}/{path.name}" not in known:
                yield f"{path}: is not part of the backup"
    if manifest.segments and not damaged:
        last = manifest.segments[-1]
        files = SegmentFiles(
            backup.directory / LOG_DIRECTORY,
            manifest.segment_size,
            entries=backup.directory / ENTRY_DIRECTORY,
        )
        files.add(last.base, backup.directory / last.path)
        # Entries may begin in the middle of a file: a raft node checks them at its start.
        if last.directory == LOG_DIRECTORY:
            end = valid_end(files, last.base, manifest.log_end)
            if end < manifest.log_end:
                yield f"{backup.directory / last.path}: no valid record at {end}"


def _problem(backup: Backup, file: FileFacts, meter: Meter) -> str | None:
    path = backup.directory / file.path
    try:
        size = path.stat().st_size
        if size != file.size:
            return f"has {size} bytes, expected {file.size}"
        found = hash_file(path, size, meter)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found.sha256 == file.sha256 else "its checksum differs: the file is damaged"
