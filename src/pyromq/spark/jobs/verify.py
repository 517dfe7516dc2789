"""`pyromq spark verify`: are consume queues and key indexes those that their logs make?

    verify_stores(session, [guess_config(Path("/data/broker-a/store")), ...])

Everything is made again from the logs, somewhere else, as `rebuild` does it, and compared entry
by entry with the files that are there. Stores are only read, so brokers may run on them: then
what they wrote since the job began does not count. Called in the driver.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pyromq.spark.jobs.options import SparkSettings, open_session, progress_bars, spark_options
from pyromq.spark.jobs.rebuild import (
    absolute,
    bar_updater,
    config_option,
    load_configs,
    part_option,
    show_plan,
    store_arguments,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyromq.spark.stores.builds import Progress, StoreBuild
    from pyromq.store.config import MessageStoreConfig
    from pyromq.store.offline.compare import Difference, Span
    from pyromq.store.offline.rebuild import Rebuilt

#: So many differences of a store are kept in memory; all of them stand in the report.
SHOWN: Final = 20
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Verified:
    """One store: what its log makes, and what differs from it."""

    root: Path
    made: Rebuilt
    differences: int
    #: The first of them.
    shown: tuple[Difference, ...]


def verify_stores(
    session: SparkSession,
    configs: Sequence[MessageStoreConfig],
    *,
    knows_delays: bool = True,
    scratch: Path | None = None,
    report: Path | None = None,
    part_size: int = 64 * _MIB,
    progress: Progress | None = None,
) -> list[Verified]:
    """Compare all stores with what their logs make; StoreError for a log that has a hole.

    `scratch` is where the new files are made, by default in each store's directory; about a
    tenth of the log's size is needed. `report` gets every difference as a line of JSON.
    `knows_delays`: the settings have the delay levels that the stores were written with.
    """
    from pyromq.spark.runtime.fan_out import fan_out, parallelism
    from pyromq.spark.stores.builds import StoreBuild, build_stores, watched
    from pyromq.store.offline.rebuild import Targets, require_log

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
        made = build_stores(session, builds, part_size=part_size, progress=progress)
        groups = max(1, 2 * parallelism(session) // len(configs))
        tasks = [
            _Comparison(number, build, _span(result, known_end), group, groups, knows_delays)
            for number, (build, result, known_end) in enumerate(
                zip(builds, made, known_ends, strict=True)
            )
            for group in range(-1, groups)
        ]
        with watched(session, progress, "comparing", len(tasks)):
            found = fan_out(session, _compare, tasks)
        if report is not None:
            _write_report(report, [path for _, _, path, _ in found])
    return [
        Verified(
            config.root,
            result,
            sum(count for store, count, _, _ in found if store == number),
            tuple(
                islice((one for store, _, _, few in found if store == number for one in few), SHOWN)
            ),
        )
        for number, (config, result) in enumerate(zip(configs, made, strict=True))
    ]


def _known_end(config: MessageStoreConfig) -> int | None:
    """Where messages end that all queues have by now; None for a store that was stopped."""
    from pyromq.store.offline.check import is_unclean
    from pyromq.store.offline.check_queues import last_end

    if not is_unclean(config.root):
        return None
    return max(map(last_end, config.consume_queue_directory.glob("*/*")), default=0)


def _span(made: Rebuilt, known_end: int | None) -> Span:
    from pyromq.store.offline.compare import Span

    end = made.log_end if known_end is None else min(known_end, made.log_end)
    return Span(made.log_begin, made.log_end, end, may_move=known_end is not None)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The work of one task: some queues, or the index."""

    store: int
    build: StoreBuild
    span: Span
    #: -1 is the index.
    group: int
    groups: int
    knows_delays: bool

    def differences(self) -> Iterator[Difference]:
        from pyromq.store.offline.compare import compare_index, compare_queues
        from pyromq.store.recovery.queue_damage import known_deletions, known_topics

        config, targets = self.build.config, self.build.targets
        assert targets.queues is not None
        assert targets.index is not None
        if self.group >= 0:
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


def _compare(work: _Comparison) -> tuple[int, int, str, list[Difference]]:
    """Number of the store, how many differences, the file with all of them, the first ones."""
    import orjson

    path = work.build.scratch / f"differences-{work.group + 1}"
    shown: list[Difference] = []
    count = 0
    with path.open("wb") as file:
        for difference in work.differences():
            fields = {"store": str(work.build.config.root), **difference._asdict()}
            file.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
            count += 1
            if len(shown) < SHOWN:
                shown.append(difference)
    return work.store, count, str(path), shown


def _write_report(report: Path, parts: Sequence[str]) -> None:
    with report.open("wb") as target:
        for part in parts:
            with Path(part).open("rb") as source:
                shutil.copyfileobj(source, target)


@click.command("verify")
@store_arguments
@config_option
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write every difference to this file, one JSON object in a line.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where files are made for the comparison, on a path that all tasks see; by default in "
    "each store's directory. A tenth of the logs' size is enough.",
)
@part_option
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@spark_options
def command(
    stores: tuple[Path, ...],
    config_file: Path | None,
    report: Path | None,
    scratch: Path | None,
    part_size: int,
    dry_run: bool,
    spark: SparkSettings,
) -> None:
    """Compare the consume queues and the key index of each STORE with what its commit log makes.

    Names every difference: which file, which entry, what it should be and what it is. Ends with
    exit code 1 when there is one. Changes nothing; brokers may be running on the stores.

    \b
    Examples
        pyromq spark verify /data/broker-a/store
        pyromq spark verify /data/*/store --report differences.jsonl
    """
    from pyromq.store.results import StoreError

    configs = load_configs(stores, config_file)
    if scratch is not None and not scratch.is_dir():
        raise click.BadParameter(f"{scratch} is no directory", param_hint="--scratch")
    if dry_run:
        show_plan(configs, part_size * _MIB)
        click.echo("nothing was read; without --dry-run queues and indexes would be compared")
        return
    try:
        with open_session(spark) as session, progress_bars() as bars:
            verified = verify_stores(
                session,
                configs,
                knows_delays=config_file is not None,
                scratch=scratch,
                report=report,
                part_size=part_size * _MIB,
                progress=bar_updater(bars),
            )
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    for result in verified:
        for difference in result.shown:
            click.echo(str(difference))
        if result.differences > len(result.shown):
            rest = result.differences - len(result.shown)
            where = report or "a file that --report names"
            click.echo(f"... and {rest} more: all of them are in {where}")
        click.echo(
            f"{result.root}: {result.made.queues} consume queues with {result.made.entries} "
            f"entries and {result.made.keys} keys compared, {result.differences} differences"
        )
    if any(result.differences for result in verified):
        raise SystemExit(1)
