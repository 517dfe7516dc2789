"""Fuzz the compiled kernel: two builds, hostile input, the same results, no access out of bounds.

Each module of the kernel has a file of its name beside this one, its `Target`:

    inputs(random)         yields inputs for ever, any objects; the same ones for the same seed
    runner(module)         sets up a module of a build; returns a function that calls it with an
                           input and returns a result that can be compared by ==
    check(given, result)   compares a result with the Python code (AssertionError), and returns
                           whether the module did anything but leave the input to that code

`fuzz` runs a target. `Mutator` damages bytes. `tests/fuzz/test_kernel.py` finds all targets;
`python -m tests.fuzz.kernel sends --seed 7` runs one by hand.
"""

from __future__ import annotations

import importlib
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol

from tests import kernel_builds
from tests.kernel_builds import CHECKED, FAST, Build

#: Inputs between two looks at the clock.
_ROUND: Final = 64
_SHOWN: Final = 4000


class Target(Protocol):
    """How to fuzz a module; see above."""

    def inputs(self, random: Random) -> Iterator[Any]:
        """Yield inputs for ever."""

    def runner(self, module: ModuleType) -> Callable[[Any], Any]:
        """Return a function from an input to a result."""

    def check(self, given: Any, result: Any) -> bool:
        """Compare a result with the Python code; return whether there was something to compare."""


class Report(NamedTuple):
    """How much was fuzzed, and of how many inputs the kernel took something."""

    inputs: int
    taken: int


def names() -> list[str]:
    """Return the modules of the kernel that have a target."""
    here = Path(__file__).parent
    return [name for name in kernel_builds.names() if (here / f"{name}.py").exists()]


def fuzz(
    name: str,
    seed: int,
    *,
    builds: Sequence[Build] = (CHECKED, FAST),
    count: int | None = None,
    seconds: float | None = None,
    first: int = 0,
) -> Report:
    """Fuzz a module with `count` inputs, or for `seconds` of CPU time. Raises AssertionError.

    The error names seed and number of the input; `first` skips the inputs before it.
    """
    target: Target = importlib.import_module(f"tests.fuzz.kernel.{name}")
    runners = [target.runner(kernel_builds.load(build, name)) for build in builds]
    fault_counts = [
        module.fault_count for build in builds for module in kernel_builds.loaded(build).values()
    ]
    deadline = None if seconds is None else time.process_time() + seconds
    number = first
    taken = 0
    stream = islice(target.inputs(Random(seed)), first, None if count is None else first + count)
    before = sum(each() for each in fault_counts)
    for number, given in enumerate(stream, first):
        try:
            result, *others = [run(given) for run in runners]
            assert all(other == result for other in others), f"results differ: {result} {others}"
            faults = sum(each() for each in fault_counts) - before
            assert faults == 0, f"{faults} accesses out of bounds"
            taken += target.check(given, result)
        except Exception as error:
            shown = f"{given!r:.{_SHOWN}}"
            error.add_note(f"{name}, seed {seed}, input {number}: {shown}")
            raise
        if deadline is not None and not number % _ROUND and time.process_time() > deadline:
            break
    return Report(number - first + 1, taken)


#: Integers at the borders of what length fields can hold.
_LENGTHS: Final = (0, 1, 2, 3, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFF, 0x8000)
_WORDS: Final = tuple(
    struct.pack(">I", value & 0xFFFFFFFF)
    for value in (*_LENGTHS, -1, -2, 0x7FFFFFFF, 0x80000000, 0x1000000, 0xFFFFFF)
)


class Mutator:
    """Damages bytes in small ways, most often in one place."""

    def __init__(self, random: Random, tokens: Sequence[bytes] = ()) -> None:
        """`tokens` are pieces that mean something to the decoder, to insert anywhere."""
        self._random = random
        self._tokens = tokens or (b"\0",)
        self._ways = (
            self._replace_byte,
            self._remove,
            self._insert_token,
            self._replace_by_token,
            self._replace_word,
            self._nudge_word,
            self._copy,
            self._truncate,
        )

    def mutate(self, data: bytes) -> bytes:
        """Return damaged data."""
        damaged = bytearray(data)
        choose = self._random.choice
        for _ in range(choose((1, 1, 1, 2, 3, 8))):
            choose(self._ways)(damaged, self._random.randrange(len(damaged) + 1))
        return bytes(damaged)

    def _replace_byte(self, data: bytearray, at: int) -> None:
        data[at : at + 1] = self._random.randbytes(1)

    def _remove(self, data: bytearray, at: int) -> None:
        del data[at : at + self._random.randrange(1, 9)]

    def _insert_token(self, data: bytearray, at: int) -> None:
        data[at:at] = self._random.choice(self._tokens)

    def _replace_by_token(self, data: bytearray, at: int) -> None:
        token = self._random.choice(self._tokens)
        data[at : at + len(token)] = token

    def _replace_word(self, data: bytearray, at: int) -> None:
        data[at : at + 4] = self._random.choice(_WORDS)

    def _nudge_word(self, data: bytearray, at: int) -> None:
        """Change a length by a little, or make it one that is about right for these bytes."""
        small = data.find(b"\0\0\0", at)  # most lengths are small
        at = at if small < 0 else small
        if at + 4 > len(data):
            return
        (value,) = struct.unpack_from(">I", data, at)
        if self._random.random() < 0.5:
            value += self._random.randrange(-8, 9)
        else:
            value = len(data) - at + self._random.randrange(-8, 9)
        struct.pack_into(">I", data, at, value & 0xFFFFFFFF)

    def _copy(self, data: bytearray, at: int) -> None:
        start = self._random.randrange(len(data) + 1)
        data[at:at] = data[start : start + self._random.randrange(60)]

    def _truncate(self, data: bytearray, at: int) -> None:
        del data[at:]
