"""Fuzz a module of the kernel by hand: python -m tests.fuzz.kernel sends --seed 7 --count 1000000.

With --sanitized, in the environment of `kernel_builds.sanitizer_environment`, the sanitized build
takes the place of the checked one.
"""

from __future__ import annotations

import argparse
import time

from tests.fuzz.kernel.fuzzing import fuzz, names
from tests.kernel_builds import CHECKED, FAST, SANITIZED


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module", choices=names())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="Skip the inputs before this one.")
    parser.add_argument("--sanitized", action="store_true")
    options = parser.parse_args()
    begun = time.process_time()
    report = fuzz(
        options.module,
        options.seed,
        builds=(SANITIZED if options.sanitized else CHECKED, FAST),
        count=options.count,
        first=options.first,
    )
    micros = (time.process_time() - begun) * 1e6 / report.inputs
    print(f"{options.module}: {report.inputs} inputs, {report.taken} taken, {micros:.0f} us each")  # noqa: T201


if __name__ == "__main__":
    main()
