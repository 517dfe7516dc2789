"""Keep a copy of everything that a truncation removes.

    STORE.truncated-OFFSET-TIME/
        commitlog/NAME     the segments' bytes from OFFSET on, at their positions
        config/*.json      the tables as they were
        checkpoint         the same
        truncated.json     what was cut, and from which store
        README.txt         how to look at it and how to put it back

`pyromq store dump` shows the segments. Everything is fsynced before `write_backup` returns, and
truncated.json is written last: a directory without it is incomplete, and its store is unchanged.
Never overwrites anything. Called by `truncate`, on one thread.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any, Final

import orjson

from pyromq.base.atomic_file import sync_directory, write_file
from pyromq.base.sizes import MIB
from pyromq.store.config import MessageStoreConfig
from pyromq.store.log.mapped_file import MappedFile, make_file
from pyromq.store.offline.truncate_tables import PROGRESS_NOTE, TABLES
from pyromq.store.results import StoreError

#: Bytes that are read at once. Blocks of zeros are not written.
_BLOCK_SIZE: Final = MIB
_ZEROS: Final = bytes(_BLOCK_SIZE)

_README: Final = """\
pyromq truncated the log of {store} to offset {offset} and cut {size} bytes.
This directory has the bytes that were cut, and the tables as they were before.

Show the messages:
    pyromq store dump commitlog/{first} --offset {offset}
    and the later files of commitlog without --offset

Put them back, with the broker stopped, while the log still ends at {offset}:
    dd if=commitlog/{first} of={target} bs=1M iflag=skip_bytes,fullblock oflag=seek_bytes \\
        skip={position} seek={position} conv=notrunc,sparse,fsync
    copy the later files of commitlog to {directory}
    copy config/*.json to {store}/config
    touch {root}/abort; rm -f {root}/checkpoint
"""


def data_blocks(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of a file that are not all zeros, with their positions, from `start` on."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = start
        while True:
            try:
                position = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # only a hole is left
                raise
            data = os.pread(descriptor, _BLOCK_SIZE, position)
            if not data:
                return
            if data != _ZEROS[: len(data)]:
                yield position, data
            position += len(data)
    finally:
        os.close(descriptor)


def require_room(parent: Path, size: int) -> None:
    """Raise StoreError unless the disk of a directory, which may not exist, has room."""
    existing = next(path for path in (parent, *parent.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < size:
        raise StoreError(
            f"no room for the backup in {parent}: it takes {size} bytes, and {free} are free; "
            "choose a directory on another disk"
        )


def write_backup(
    parent: Path,
    config: MessageStoreConfig,
    files: Sequence[MappedFile],
    offset: int,
    facts: dict[str, Any],
) -> Path:
    """Copy the bytes of `files` from `offset` on, and the tables; return the new directory.

    `facts` go into truncated.json. If writing fails, removes the directory and raises StoreError.
    """
    store = config.root.resolve()
    parent.mkdir(parents=True, exist_ok=True)
    directory = _new_directory(parent, f"{store.name}.truncated-{offset}")
    try:
        segments = directory / "commitlog"
        segments.mkdir()
        for file in files:
            _copy_segment(file, segments, max(0, offset - file.base))
        sync_directory(segments)
        _copy_tables(config, directory)
        if files:
            first = files[0]
            text = _README.format(
                store=store,
                offset=offset,
                size=facts["endOffset"] - offset,
                first=first.path.name,
                root=quote(str(store)),
                target=quote(str(first.path.resolve())),
                directory=first.path.resolve().parent,
                position=max(0, offset - first.base),
            )
            write_file(directory / "README.txt", text.encode())
        written = orjson.dumps(facts, option=orjson.OPT_INDENT_2)
        write_file(directory / "truncated.json", written + b"\n")
        sync_directory(parent)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise StoreError(
            f"cannot write the backup {directory}: {error.strerror or error}; nothing was changed"
        ) from error
    return directory


def _new_directory(parent: Path, name: str) -> Path:
    time = datetime.now(UTC)
    number = 1
    while True:
        suffix = f"-{number}" if number > 1 else ""
        directory = parent / f"{name}-{time:%Y%m%dT%H%M%SZ}{suffix}"
        try:
            directory.mkdir()
        except FileExistsError:
            number += 1
        else:
            return directory


def _copy_segment(file: MappedFile, directory: Path, start: int) -> None:
    path = make_file(directory, file.base, file.size)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for position, data in data_blocks(file.path, start):
            rest = memoryview(data)
            while rest:
                written = os.pwrite(descriptor, rest, position)
                rest, position = rest[written:], position + written
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_tables(config: MessageStoreConfig, directory: Path) -> None:
    paths = [config.config_directory / name for name in (*TABLES, PROGRESS_NOTE)]
    for path in (*paths, config.root / "checkpoint"):
        if path.is_file():
            write_file(directory / path.relative_to(config.root), path.read_bytes())
