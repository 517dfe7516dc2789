"""The disks of a store: file system, free room against the cleaning marks, latency of writes.

The latency is measured with a small file in the store's directory, which is removed. Called by
`command`, on the main thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pyromq.base.sizes import MIB
from pyromq.cli.doctor.finding import Finding, fail, ok, warn
from pyromq.store.config import FlushDiskType, MessageStoreConfig

_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre"})
_SYNCS: Final = 25
_BLOCK: Final = bytes(4096)
#: Median of a write with fdatasync: slower disks delay flushes and sends with SYNC_FLUSH.
_SLOW_SECONDS: Final = 0.02
_TOO_SLOW_SECONDS: Final = 0.25


def examine_disks(config: MessageStoreConfig, root: Path = Path("/")) -> Iterator[Finding]:
    """Examine the disks of a store's directories; `root` stands for `/` of /proc."""
    directories = dict.fromkeys(
        [config.root, config.commit_log_directory, *config.more_commit_log_directories]
    )
    existing = {_existing(path): path for path in directories}
    for path in existing:
        yield from _file_system(path, root)
        yield from _room(path, config)
    yield from _latency(next(iter(existing)), config)


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())


def _file_system(path: Path, root: Path) -> Iterator[Finding]:
    kind = file_system_of(path, root)
    if kind is None:
        return
    check = "file system"
    if kind in ("tmpfs", "ramfs"):
        yield fail(
            check,
            f"{path} is on a {kind}",
            "its files are in memory: a restart of the machine loses every message",
            "set storePathRootDir to a directory on a disk",
        )
    elif kind == "overlay":
        yield warn(
            check,
            f"{path} is on an overlay file system",
            "in a container that is its own layer, which is slow and goes with the container",
            "mount a volume at the store's directory",
        )
    elif kind in _NETWORK or kind.startswith("fuse"):
        yield warn(
            check,
            f"{path} is on a network or user-space file system ({kind})",
            "locks, mapped files and fsync are slow there, or do less than they promise",
            "use a local disk; replicate by brokers, not by file systems",
        )
    else:
        yield ok(check, f"{path} is on {kind}")


def file_system_of(path: Path, root: Path = Path("/")) -> str | None:
    """Return the type of the file system that holds a path, or None if it is unknown."""
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    resolved = path.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        names = fields.split()
        if len(names) < 5 or not rest:
            continue
        # Spaces and backslashes are written in octal.
        point = Path(names[4].encode("latin-1").decode("unicode_escape"))
        if resolved == point or point in resolved.parents:
            length = len(point.parts)
            if best is None or length >= best[0]:  # later mounts cover earlier ones
                best = length, rest.split()[0]
    return None if best is None else best[1]


def _room(path: Path, config: MessageStoreConfig) -> Iterator[Finding]:
    usage = shutil.disk_usage(path)
    percent = 100 * (usage.total - usage.free) // max(1, usage.total)
    text = f"{path}: {percent} % used, {usage.free // MIB:,} MiB free"
    if percent > config.disk_space_warning_level_ratio:
        yield fail(
            "disk room",
            text,
            f"above {config.disk_space_warning_level_ratio} % (diskSpaceWarningLevelRatio) the "
            "broker refuses sends",
            "free room, lower fileReservedTime, or add a disk to storePathCommitLog",
        )
    elif percent > config.disk_cleaning_percent:
        forcibly = config.disk_space_clean_forcibly_ratio
        yield warn(
            "disk room",
            text,
            f"above {config.disk_cleaning_percent} % (diskMaxUsedSpaceRatio) expired segments are "
            f"deleted at any hour, above {forcibly} % unexpired ones as well",
            "free room, lower fileReservedTime, or add a disk to storePathCommitLog",
        )
    elif usage.free < config.mapped_file_size_commit_log:
        yield warn(
            "disk room",
            text,
            "there is no room for another segment of the log",
            "free room, or set a smaller mappedFileSizeCommitLog for a new store",
        )
    else:
        yield ok("disk room", text)


def _latency(path: Path, config: MessageStoreConfig) -> Iterator[Finding]:
    try:
        times = measure_syncs(path)
    except OSError as error:
        yield warn(
            "disk latency",
            f"{path} cannot be written: {error.strerror}",
            "the broker must be able to",
            "run this as the broker's user, or correct the owner of the directory",
        )
        return
    median, worst = statistics.median(times), max(times)
    text = (
        f"{path}: write and fdatasync take {median * 1000:.2f} ms, {worst * 1000:.2f} ms at most "
        f"of {len(times)}"
    )
    sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    why = (
        "with SYNC_FLUSH each send waits for that long"
        if sync
        else "flushes fall behind, and a power cut loses more"
    )
    advice = "use a local SSD or NVMe disk, and look for other programs that write to it"
    if median > _TOO_SLOW_SECONDS:
        yield fail("disk latency", text, why, advice)
    elif median > _SLOW_SECONDS:
        yield warn("disk latency", text, why, advice)
    else:
        yield ok("disk latency", text)


def measure_syncs(
    directory: Path, count: int = _SYNCS, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the seconds of writes of 4 KiB with fdatasync, in a new file. Raises OSError."""
    path = directory / f".doctor-{os.getpid()}.tmp"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        times = []
        for number in range(count):
            begun = clock()
            os.pwrite(descriptor, _BLOCK, number * len(_BLOCK))
            os.fdatasync(descriptor)
            times.append(clock() - begun)
        return times
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
