"""Limits and settings of the kernel that a broker depends on, read from /proc and /sys.

`root` stands for `/`, so that tests can bring files of their own. A file that does not exist, as in
some containers, gives no finding. Called by `command`, on the main thread.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyromq.base.sizes import MIB
from pyromq.cli.doctor.finding import Finding, fail, ok, warn

#: Open files: fewer stop a broker with many clients or queues, many fewer any broker.
_GOOD_OPEN_FILES: Final = 65_536
_LEAST_OPEN_FILES: Final = 4096
#: Mappings that a process needs beside those of the store.
_OTHER_MAPPINGS: Final = 2000
#: What `base.descriptors` maps at most, by default.
_MAPPED_FILES: Final = 16_384
_GOOD_SWAPPINESS: Final = 10
#: Dirty pages that the kernel writes back in the background before it stalls writers.
_MAX_DIRTY_BACKGROUND: Final = 4096 * MIB
_LEAST_AVAILABLE_MEMORY: Final = 512 * MIB


def examine_machine(
    root: Path = Path("/"), *, process: int | None = None, max_mapped_files: int = 0
) -> Iterator[Finding]:
    """Examine the kernel's settings; `process` is the id of a running broker."""
    yield from _open_files(root, process)
    yield from _mappings(root, max_mapped_files)
    yield from _swap(root, process)
    yield from _dirty_pages(root)
    yield from _overcommit(root)
    yield from _huge_pages(root)
    yield from _memory(root)


def _open_files(root: Path, process: int | None) -> Iterator[Finding]:
    limit, whose = resource.getrlimit(resource.RLIMIT_NOFILE)[1], "this shell"
    text = None if process is None else _text(root, f"proc/{process}/limits")
    found = re.search(r"^Max open files\s+(\S+)\s+(\S+)", text or "", re.MULTILINE)
    if found is not None:
        whose = f"process {process}"
        limit = resource.RLIM_INFINITY if found[2] == "unlimited" else int(found[2])
    if limit == resource.RLIM_INFINITY or limit >= _GOOD_OPEN_FILES:
        shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
        yield ok("open files", f"the limit of {whose} is {shown}")
        return
    report = fail if limit < _LEAST_OPEN_FILES else warn
    yield report(
        "open files",
        f"the limit of {whose} is {limit:,}",
        "each connection and each mapped file takes a descriptor; clients beyond the limit are "
        "turned away",
        f"set LimitNOFILE={_GOOD_OPEN_FILES * 16} in the unit, or raise ulimit -Hn",
    )


def _mappings(root: Path, max_mapped_files: int) -> Iterator[Finding]:
    limit = _number(root, "proc/sys/vm/max_map_count")
    if limit is None:
        return
    needed = (max_mapped_files or _MAPPED_FILES) + _OTHER_MAPPINGS
    if limit >= needed:
        yield ok("memory maps", f"vm.max_map_count is {limit:,}")
    else:
        yield warn(
            "memory maps",
            f"vm.max_map_count is {limit:,}, the store may map {needed - _OTHER_MAPPINGS:,} files",
            "a file that cannot be mapped cannot be read or written",
            f"set vm.max_map_count={max(needed, 262_144)} (packaging/sysctl.d), or lower "
            "maxMappedFiles",
        )


def _swap(root: Path, process: int | None) -> Iterator[Finding]:
    text = None if process is None else _text(root, f"proc/{process}/status")
    swapped = re.search(r"^VmSwap:\s+(\d+) kB", text or "", re.MULTILINE)
    if swapped is not None and int(swapped[1]) > 0:
        yield warn(
            "swap",
            f"{int(swapped[1]) // 1024} MiB of the broker are swapped out",
            "touching a swapped page stops all clients for milliseconds",
            "give the machine more memory, set vm.swappiness=1 and restart the broker",
        )
        return
    lines = (_text(root, "proc/swaps") or "").splitlines()[1:]
    swappiness = _number(root, "proc/sys/vm/swappiness")
    if lines and swappiness is not None and swappiness > _GOOD_SWAPPINESS:
        yield warn(
            "swap",
            f"swap is on, and vm.swappiness is {swappiness}",
            "the kernel may swap the broker out to keep file pages that were read once",
            "set vm.swappiness=1, or turn swap off",
        )
    elif swappiness is not None:
        yield ok("swap", f"vm.swappiness is {swappiness}" if lines else "swap is off")


def _dirty_pages(root: Path) -> Iterator[Finding]:
    bytes_set = _number(root, "proc/sys/vm/dirty_background_bytes")
    ratio = _number(root, "proc/sys/vm/dirty_background_ratio")
    total = _memory_field(root, "MemTotal")
    if bytes_set is None or ratio is None or total is None:
        return
    background = bytes_set or total * ratio // 100
    if background <= _MAX_DIRTY_BACKGROUND:
        yield ok("dirty pages", f"written back from {background // MIB:,} MiB on")
    else:
        yield warn(
            "dirty pages",
            f"written back only from {background // MIB:,} MiB on",
            "a flush may then have to wait for gigabytes, and sends with it",
            "set vm.dirty_background_bytes=268435456 and vm.dirty_bytes=1073741824",
        )


def _overcommit(root: Path) -> Iterator[Finding]:
    mode = _number(root, "proc/sys/vm/overcommit_memory")
    if mode == 2:
        yield warn(
            "overcommit",
            "vm.overcommit_memory is 2",
            "a start with a transient store pool, or a fork, may be refused although there is "
            "memory",
            "set vm.overcommit_memory=1",
        )
    elif mode is not None:
        yield ok("overcommit", f"vm.overcommit_memory is {mode}")


def _huge_pages(root: Path) -> Iterator[Finding]:
    text = _text(root, "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text or "")
    if chosen is None:
        return
    if chosen[1] == "always":
        yield warn(
            "huge pages",
            "transparent huge pages are always used",
            "the kernel may stall the broker for compaction, and its memory grows",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    else:
        yield ok("huge pages", f"transparent huge pages: {chosen[1]}")


def _memory(root: Path) -> Iterator[Finding]:
    available = _memory_field(root, "MemAvailable")
    limit = _number(root, "sys/fs/cgroup/memory.max")
    used = _number(root, "sys/fs/cgroup/memory.current")
    whose = "the machine"
    if limit is not None and used is not None and available is not None:
        # Page cache counts as used here, but can be freed.
        cached = re.search(
            r"^file (\d+)$", _text(root, "sys/fs/cgroup/memory.stat") or "", re.MULTILINE
        )
        left = limit - used + (int(cached[1]) if cached else 0)
        if left < available:
            available, whose = left, "this control group"
    if available is None:
        return
    if available >= _LEAST_AVAILABLE_MEMORY:
        yield ok("memory", f"{whose} has {available // MIB:,} MiB available")
    else:
        yield warn(
            "memory",
            f"{whose} has only {available // MIB:,} MiB available",
            "messages are served from the page cache; without room each pull reads the disk",
            "give it more memory, or move other programs away",
        )


def _memory_field(root: Path, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", _text(root, "proc/meminfo") or "", re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def _number(root: Path, name: str) -> int | None:
    text = _text(root, name)
    return int(text) if text is not None and text.strip().isdecimal() else None


def _text(root: Path, name: str) -> str | None:
    try:
        return (root / name).read_text()
    except (OSError, UnicodeDecodeError):
        return None
