"""The verify job: compare consume queues and key indexes with the logs they derive from.

    verify_stores(session, [guess_config(Path("/data/broker-a/store")), ...])

The job rebuilds everything from the logs into a scratch directory, as `rebuild` does, and compares
it entry by entry with the existing files. It only reads the stores, so brokers may run; entries
that they write after the job has started are not compared. Called in the driver.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from pyromq.spark.runtime.fan_out import fan_out, parallelism
from pyromq.spark.stores.builds import Progress, StoreBuild, build_stores, watched
from pyromq.spark.stores.settings import absolute
from pyromq.store.offline.check import is_unclean
from pyromq.store.offline.check_queues import last_end
from pyromq.store.offline.compare import Difference, Span, compare_index, compare_queues
from pyromq.store.offline.log_parts import PART_SIZE
from pyromq.store.offline.rebuild import Rebuilt, Targets, require_log
from pyromq.store.recovery.queue_damage import known_deletions, known_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyromq.store.config import MessageStoreConfig

#: Differences per store that are returned; a report file lists all of them.
MAX_SHOWN: Final = 20
#: The `group` of the task that compares the index.
_INDEX: Final = -1


@dataclass(frozen=True, slots=True)
class Verified:
    """The result for one store."""

    root: Path
    #: The files that its log yields.
    rebuilt: Rebuilt
    differences: int
    #: The first differences.
    shown: tuple[Difference, ...]


def verify_stores(
    session: SparkSession,
    configs: Sequence[MessageStoreConfig],
    *,
    knows_delays: bool = True,
    scratch: Path | None = None,
    report: Path | None = None,
    part_size: int = PART_SIZE,
    progress: Progress | None = None,
) -> list[Verified]:
    """Compare stores with their logs. Raises StoreError for a log with a hole.

    The files are rebuilt in `scratch`, by default each store's directory, and take about a tenth of
    the log's size. Every difference is written to `report` as a line of JSON. `knows_delays` says
    that the settings have the delay levels with which the stores were written.
    """
    configs = absolute(configs)
    with ExitStack() as clean_up:
        builds: list[StoreBuild] = []
        known_ends: list[int | None] = []
        for config in configs:
            require_log(config)
            known_ends.append(_known_end(config))
            room = Path(tempfile.mkdtemp(prefix="verify.", dir=scratch or config.root)).resolve()
            clean_up.callback(shutil.rmtree, room, ignore_errors=True)
            build = StoreBuild(config, Targets.below(room / "made", config), room / "parts")
            build.targets.make()
            builds.append(build)
        rebuilt = build_stores(session, builds, part_size=part_size, progress=progress)
        groups = max(1, 2 * parallelism(session) // len(configs))
        tasks = [
            _Comparison(number, build, _span(result, known_end), group, groups, knows_delays)
            for number, (build, result, known_end) in enumerate(
                zip(builds, rebuilt, known_ends, strict=True)
            )
            for group in (_INDEX, *range(groups))
        ]
        with watched(session, progress, "comparing", len(tasks)):
            compared = fan_out(session, _compare, tasks)
        if report is not None:
            _write_report(report, [each.file for each in compared])
    return [
        Verified(
            config.root,
            result,
            sum(each.differences for each in compared if each.store == number),
            tuple(
                islice(
                    (one for each in compared if each.store == number for one in each.first),
                    MAX_SHOWN,
                )
            ),
        )
        for number, (config, result) in enumerate(zip(configs, rebuilt, strict=True))
    ]


def _known_end(config: MessageStoreConfig) -> int | None:
    """Return the log offset up to which all queues are complete; None for a stopped store."""
    if not is_unclean(config.root):
        return None
    return max(map(last_end, config.consume_queue_directory.glob("*/*")), default=0)


def _span(rebuilt: Rebuilt, known_end: int | None) -> Span:
    end = rebuilt.log_end if known_end is None else min(known_end, rebuilt.log_end)
    return Span(rebuilt.log_begin, rebuilt.log_end, end, may_move=known_end is not None)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The work of one task: a group of queues, or the index."""

    store: int
    build: StoreBuild
    span: Span
    group: int
    groups: int
    knows_delays: bool

    def differences(self) -> Iterator[Difference]:
        config, targets = self.build.config, self.build.targets
        assert targets.queues is not None
        assert targets.index is not None
        if self.group != _INDEX:
            return compare_queues(
                targets.queues,
                config.consume_queue_directory,
                self.span,
                group=self.group,
                groups=self.groups,
                topics=known_topics(config.config_directory),
                knows_delays=self.knows_delays,
                deletions=known_deletions(config.config_directory),
            )
        if not config.message_index_enable:
            return iter(())
        return compare_index(
            targets.index,
            config.index_directory,
            config.max_hash_slot_num,
            config.max_index_num,
            self.span,
        )


class _Compared(NamedTuple):
    """The result of one task."""

    store: int
    differences: int
    #: The path of a file with all differences.
    file: str
    first: list[Difference]


def _compare(work: _Comparison) -> _Compared:
    path = work.build.scratch / f"differences-{work.group + 1}"
    first: list[Difference] = []
    count = 0
    with path.open("wb") as file:
        for difference in work.differences():
            fields = {"store": str(work.build.config.root), **difference._asdict()}
            file.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
            count += 1
            if len(first) < MAX_SHOWN:
                first.append(difference)
    return _Compared(work.store, count, str(path), first)


def _write_report(report: Path, files: Sequence[str]) -> None:
    with report.open("wb") as target:
        for file in files:
            with Path(file).open("rb") as source:
                shutil.copyfileobj(source, target)
