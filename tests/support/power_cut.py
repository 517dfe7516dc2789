"""A disk that forgets: what a power cut would leave of a store, at any moment.

While a `Disk` records, files below its root are used as always, but a sync only notes what
is on the disk from then on. The model is ext4's with ordered data:

1. Changes of names and sizes (create, resize, remove, rename, a hole to the end) reach the
   disk in their order, any number of them at a time. A sync brings those before the last
   one of its file, a sync of a directory all.
2. Content reaches the disk by a sync of its file, or page by page, whenever the kernel
   likes and in any order; a page of which only some sectors arrived is torn. Content
   written behind a change of its file is never seen without that change.
3. What never arrived reads as what was there before: zeros in a new file.

`cut_at` counts syncs and changes of names and sizes, in all threads: just before that one
the power goes. What is left then is kept, and recording goes on, so that the store under
test can be stopped as usual. `restore` writes what was left.

One Disk at a time: it patches functions of `os` and of `mapped_file`. All of it is under one lock.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from pyromq.store.log import mapped_file

_PAGE: Final = 4096
_SECTOR: Final = 512


class Kind(Enum):
    """A change of names or sizes."""

    CREATE = auto()
    RESIZE = auto()
    REMOVE = auto()
    RENAME = auto()
    HOLE = auto()


class Luck(Enum):
    """How much of what was not synced reached the disk."""

    NOTHING = auto()
    SOME = auto()
    TORN = auto()
    EVERYTHING = auto()


@dataclass(eq=False)
class _File:
    #: Where it is now; None when it was removed.
    path: Path | None
    #: What is on the disk.
    durable: bytearray = field(default_factory=bytearray)
    #: Changes that are not on the disk yet.
    waiting: int = 0


@dataclass(frozen=True)
class _Change:
    kind: Kind
    file: _File
    path: Path
    #: The new size, or where the hole begins.
    size: int = 0
    #: The new name.
    target: Path | None = None


class Disk:
    """Records what is below `root`, which is taken as it stands to begin with."""

    def __init__(self, root: Path, chooser: random.Random) -> None:
        self.root = root.resolve()
        self.cut_at: int | None = None
        #: Called at the cut, on whatever thread it falls.
        self.on_cut: Callable[[], None] = lambda: None
        self.events = 0
        self.remains: dict[Path, bytes] | None = None
        self._chooser = chooser
        self._lock = threading.RLock()
        self._files: dict[Path, _File] = {}
        #: Names that are on the disk.
        self._names: dict[Path, _File] = {}
        self._waiting: list[_Change] = []
        for path in _files_below(self.root):
            file = _File(path, bytearray(path.read_bytes()))
            self._files[path] = self._names[path] = file

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let the functions of `os` tell this disk what they do."""
        self._real = {name: getattr(os, name) for name in _PATCHED}
        self._real_punch_hole = mapped_file._punch_hole
        for name in _PATCHED:
            setattr(os, name, getattr(self, f"_os_{name}"))
        mapped_file._punch_hole = self._punch_hole
        try:
            yield
        finally:
            mapped_file._punch_hole = self._real_punch_hole
            for name, function in self._real.items():
                setattr(os, name, function)

    def write_back(self, share: float = 0.1) -> None:
        """The kernel writes some pages of its own accord."""
        with self._lock:
            for file in list(self._files.values()):
                if self._chooser.random() < share:
                    current = self._current(file)
                    if current is not None and current != file.durable:
                        self._commit_through(file)
                        _mix(file.durable, current, Luck.SOME, self._chooser)

    def cut(self) -> None:
        """The power goes now, if it is not gone already."""
        with self._lock:
            if self.remains is None:
                self.on_cut()
                self.remains = self._what_is_left()

    def restore(self, target: Path) -> Path:
        """Write what the cut left to a new directory."""
        assert self.remains is not None
        for path, content in self.remains.items():
            copy = target / path.relative_to(self.root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        return target

    def killed(self, target: Path) -> Disk:
        """A kill of the process, not of the machine: a copy that nothing is lost of.

        What is not on the disk here is not on the disk there either.
        """
        with self._lock:
            shutil.copytree(self.root, target)
            disk = Disk(target, self._chooser)
            self._commit(len(self._waiting))
            for path, file in disk._files.items():
                here = self._names.get(self.root / path.relative_to(disk.root))
                file.durable = bytearray(here.durable) if here is not None else bytearray()
        return disk

    # What the power leaves

    def _what_is_left(self) -> dict[Path, bytes]:
        chooser = self._chooser
        luck = chooser.choice(list(Luck))
        self._find_unnoticed()
        count = len(self._waiting)
        if luck is Luck.NOTHING:
            count = 0
        elif luck is not Luck.EVERYTHING:
            count = chooser.randint(0, count)
        self._commit(count)
        left = {}
        for path, file in self._names.items():
            content = bytearray(file.durable)
            current = self._current(file)
            if current is not None and not file.waiting:
                _mix(content, current, luck, chooser)
            left[path] = bytes(content)
        return left

    def _find_unnoticed(self) -> None:
        """Files that were not made through `os.open`."""
        for path in _files_below(self.root):
            if path not in self._files:
                self._change(_Change(Kind.CREATE, _File(path), path))

    def _current(self, file: _File) -> bytes | None:
        if file.path is None or not file.path.exists():
            return None
        return file.path.read_bytes()

    # Changes of names and sizes

    def _change(self, change: _Change) -> None:
        file = change.file
        if change.kind is Kind.CREATE:
            self._files[change.path] = file
        elif change.kind is Kind.REMOVE:
            self._files.pop(change.path, None)
            file.path = None
        elif change.kind is Kind.RENAME:
            assert change.target is not None
            replaced = self._files.pop(change.target, None)
            if replaced is not None:
                replaced.path = None
            self._files[change.target] = self._files.pop(change.path)
            file.path = change.target
        file.waiting += 1
        self._waiting.append(change)

    def _commit_through(self, file: _File) -> None:
        """Bring every change up to the last one of `file`."""
        if file.waiting:
            last = max(at for at, change in enumerate(self._waiting) if change.file is file)
            self._commit(last + 1)

    def _commit(self, count: int) -> None:
        for change in self._waiting[:count]:
            file = change.file
            file.waiting -= 1
            if change.kind is Kind.CREATE:
                self._names[change.path] = file
            elif change.kind is Kind.RESIZE:
                del file.durable[change.size :]
                file.durable.extend(bytes(change.size - len(file.durable)))
            elif change.kind is Kind.REMOVE:
                self._names.pop(change.path, None)
            elif change.kind is Kind.HOLE:
                file.durable[change.size :] = bytes(len(file.durable) - change.size)
            else:
                assert change.target is not None
                self._names[change.target] = self._names.pop(change.path)
        del self._waiting[:count]

    def _event(self) -> None:
        self.events += 1
        if self._chooser.random() < 0.2:
            self.write_back(0.05)
        if self.events == self.cut_at:
            self.cut()

    def _inside(self, path: Any) -> Path | None:
        if not isinstance(path, str | os.PathLike):
            return None
        absolute = Path(path).absolute()
        return absolute if absolute.is_relative_to(self.root) else None

    def _path_of(self, descriptor: int) -> Path | None:
        return self._inside(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _known(self, path: Path) -> _File:
        file = self._files.get(path)
        if file is None:
            file = _File(path)
            self._change(_Change(Kind.CREATE, file, path))
        return file

    # In place of the functions of `os`

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, **others: Any) -> int:
        inside = self._inside(path) if flags & os.O_CREAT else None
        if inside is None:
            return int(self._real["open"](path, flags, mode, **others))
        with self._lock:
            existed = inside.exists()
            if not existed:
                self._event()
            descriptor = int(self._real["open"](path, flags, mode, **others))
            if not existed:
                self._files.pop(inside, None)
                self._known(inside)
            return descriptor

    def _os_truncate(self, path: Any, length: int) -> None:
        inside = self._inside(path) if not isinstance(path, int) else self._path_of(path)
        if inside is None or not inside.exists():  # elsewhere, or without a name yet
            self._real["truncate"](path, length)
            return
        with self._lock:
            self._event()
            self._real["truncate"](path, length)
            self._change(_Change(Kind.RESIZE, self._known(inside), inside, length))

    def _os_ftruncate(self, descriptor: int, length: int) -> None:
        self._os_truncate(descriptor, length)

    def _os_link(self, source: Any, target: Any, **others: Any) -> None:
        """A file without a name gets one: its size was there before."""
        inside = self._inside(target)
        assert inside is not None
        with self._lock:
            self._event()
            self._real["link"](source, target, **others)
            file = _File(inside, bytearray(inside.stat().st_size))
            self._change(_Change(Kind.CREATE, file, inside))

    def _os_unlink(self, path: Any, **others: Any) -> None:
        inside = self._inside(path)
        if inside is None or not inside.exists():
            self._real["unlink"](path, **others)
            return
        with self._lock:
            self._event()
            file = self._known(inside)
            self._real["unlink"](path, **others)
            self._change(_Change(Kind.REMOVE, file, inside))

    def _os_remove(self, path: Any, **others: Any) -> None:
        self._os_unlink(path, **others)

    def _os_rename(self, source: Any, target: Any, **others: Any) -> None:
        inside, new = self._inside(source), self._inside(target)
        if inside is None or new is None:
            self._real["rename"](source, target, **others)
            return
        with self._lock:
            self._event()
            file = self._known(inside)
            self._real["rename"](source, target, **others)
            self._change(_Change(Kind.RENAME, file, inside, target=new))

    def _os_replace(self, source: Any, target: Any, **others: Any) -> None:
        self._os_rename(source, target, **others)

    def _os_fsync(self, descriptor: int) -> None:
        path = self._path_of(descriptor)
        if path is None:
            self._real["fsync"](descriptor)
            return
        with self._lock:
            self._event()
            if path.is_dir():
                self._commit(len(self._waiting))
            elif path.exists():  # else it was removed meanwhile
                file = self._known(path)
                self._commit_through(file)
                file.durable = bytearray(path.read_bytes())

    def _os_fdatasync(self, descriptor: int) -> None:
        self._os_fsync(descriptor)

    def _punch_hole(self, descriptor: int, start: int, length: int) -> bool:
        path = self._path_of(descriptor)
        assert path is not None
        with self._lock:
            self._event()
            done = self._real_punch_hole(descriptor, start, length)
            assert done, "tests need a file system with holes"
            self._change(_Change(Kind.HOLE, self._known(path), path, start))
        return done


_PATCHED: Final = (
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "open",
    "remove",
    "rename",
    "replace",
    "truncate",
    "unlink",
)


def _files_below(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _mix(durable: bytearray, current: bytes, luck: Luck, chooser: random.Random) -> None:
    """Bring pages of `current` into `durable`, as luck has it."""
    if luck is Luck.NOTHING:
        return
    if luck is Luck.EVERYTHING or len(durable) != len(current):
        if luck is Luck.EVERYTHING or chooser.random() < 0.5:
            durable[:] = current
        return
    for start in range(0, len(current), _PAGE):
        page = current[start : start + _PAGE]
        if durable[start : start + _PAGE] != page and chooser.random() < 0.5:
            sectors = chooser.randint(1, _PAGE // _SECTOR) if luck is Luck.TORN else _PAGE
            arrived = page[: sectors * _SECTOR]
            durable[start : start + len(arrived)] = arrived
