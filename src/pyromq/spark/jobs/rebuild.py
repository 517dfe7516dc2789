"""`pyromq spark rebuild`: consume queues and key indexes of stores, made again on all cores.

    rebuild_stores(session, [guess_config(Path("/data/broker-a/store")), ...])

The files come out as the broker makes them, ours and RocketMQ's, byte for byte. They are made
beside the old ones and put in their place when all of them are whole. A store that is in use
is refused; while its files are swapped it counts as not stopped cleanly. `pyromq store rebuild`
does the same on one core, without Spark. Called in the driver.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pyromq.spark.jobs.options import SparkSettings, open_session, progress_bars, spark_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyromq.spark.stores.builds import Progress
    from pyromq.store.config import MessageStoreConfig
    from pyromq.store.offline.rebuild import Rebuilt

SCRATCH: Final = "rebuild.parts"
_MIB: Final = 1024 * 1024


def rebuild_stores(
    session: SparkSession,
    configs: Sequence[MessageStoreConfig],
    *,
    queues: bool = True,
    index: bool = True,
    part_size: int = 64 * _MIB,
    progress: Progress | None = None,
) -> list[Rebuilt]:
    """Make the consume queues, the indexes or both of stopped stores again.

    Raises StoreError when a store is in use, has no log or has a hole in it; nothing has
    changed then. Whatever fails later leaves the old files as they are.
    """
    configs = absolute(configs)
    with stores_locked(configs):
        return _rebuild(
            session, configs, queues=queues, index=index, part_size=part_size, progress=progress
        )


def absolute(configs: Sequence[MessageStoreConfig]) -> list[MessageStoreConfig]:
    """The same with whole paths: tasks run in other directories."""
    from dataclasses import replace

    return [replace(each, store_path_root_dir=str(each.root.resolve())) for each in configs]


@contextmanager
def stores_locked(configs: Sequence[MessageStoreConfig]) -> Iterator[None]:
    """Hold the locks of all these stores; StoreError when somebody has one of them."""
    from pyromq.store.lock import lock_store, unlock_store
    from pyromq.store.offline.rebuild import require_log

    with ExitStack() as locks:
        for config in configs:
            require_log(config)
            locks.callback(unlock_store, lock_store(config.root))
        yield


def _rebuild(
    session: SparkSession,
    configs: Sequence[MessageStoreConfig],
    *,
    queues: bool,
    index: bool,
    part_size: int,
    progress: Progress | None,
) -> list[Rebuilt]:
    from pyromq.spark.stores.builds import StoreBuild, build_stores
    from pyromq.store.offline.rebuild import Targets, put_in_place

    builds = [
        StoreBuild(
            config,
            Targets.beside(config, queues=queues, index=index),
            config.root / SCRATCH,
        )
        for config in configs
    ]
    try:
        for build in builds:
            shutil.rmtree(build.scratch, ignore_errors=True)
            build.targets.make()
        made = build_stores(session, builds, part_size=part_size, progress=progress)
        for build in builds:
            put_in_place(build.config, build.targets)
    finally:
        for build in builds:
            for directory in (build.scratch, *build.targets.wanted()):
                shutil.rmtree(directory, ignore_errors=True)
    return made


def load_configs(stores: Sequence[Path], config_file: Path | None) -> list[MessageStoreConfig]:
    """Settings of stores: of a broker's properties file, or those that their files show."""
    from pyromq.protocol.java.properties import parse_properties
    from pyromq.store.config import MessageStoreConfig
    from pyromq.store.offline.check import guess_config

    configs = []
    for store in stores:
        if not store.is_dir():
            raise click.ClickException(f"{store} is no directory: name that of a broker's store")
        if config_file is None:
            configs.append(guess_config(store))
            continue
        try:
            properties = parse_properties(config_file.read_bytes())
            properties["storePathRootDir"] = str(store)
            configs.append(MessageStoreConfig.load(properties)[0])
        except (OSError, ValueError) as error:
            raise click.ClickException(f"{config_file}: {error}") from error
    configs = absolute(configs)
    if len({config.root for config in configs}) < len(configs):
        raise click.ClickException("a store is named twice: name each one once")
    return configs


def show_plan(configs: Sequence[MessageStoreConfig], part_size: int) -> None:
    """Print what would be read, for a dry run."""
    from pyromq.store.offline.check import is_unclean
    from pyromq.store.offline.log_parts import plan_parts
    from pyromq.store.results import StoreError

    for config in configs:
        try:
            parts = plan_parts(config, part_size)
        except StoreError as error:
            raise click.ClickException(str(error)) from error
        size = sum(part.end - part.start for part in parts)
        state = ", not stopped cleanly or in use" if is_unclean(config.root) else ""
        click.echo(
            f"{config.root}: a log of {size / _MIB:,.0f} MiB from {parts[0].start if parts else 0} "
            f"on, {len(parts)} parts to decode{state}"
        )


store_arguments = click.argument(
    "stores", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="STORE..."
)
config_option = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The brokers' properties file, for the sizes of files and other directories.",
)
part_option = click.option(
    "--part-size",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help="How many MiB of a log one task decodes.",
)


@click.command("rebuild")
@store_arguments
@config_option
@click.option("--queues", is_flag=True, help="Only the consume queues.")
@click.option("--index", is_flag=True, help="Only the key indexes.")
@part_option
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@spark_options
def command(
    stores: tuple[Path, ...],
    config_file: Path | None,
    queues: bool,
    index: bool,
    part_size: int,
    dry_run: bool,
    spark: SparkSettings,
) -> None:
    """Make the consume queues and the key index of each STORE again from its commit log.

    The brokers must be stopped. The files come out as brokers make them, of pyromq and of Apache
    RocketMQ; without --config they get the sizes of those that are there. All tasks must see the
    stores under the same paths. The queues of a topic that was deleted come back as long as the
    log has its messages.

    \b
    Examples
        pyromq spark rebuild /data/broker-a/store
        pyromq spark rebuild /data/*/store --master spark://host:7077
        pyromq spark rebuild /data/broker-a/store --index --dry-run
    """
    from pyromq.store.results import StoreError

    configs = load_configs(stores, config_file)
    both = queues == index
    if dry_run:
        show_plan(configs, part_size * _MIB)
        what = "consume queues and key index" if both else "consume queues" if queues else "index"
        click.echo(f"nothing was changed; without --dry-run the {what} would be made again")
        return
    try:
        # Before Spark is started: a store in use is the likeliest mistake.
        with stores_locked(configs), open_session(spark) as session, progress_bars() as bars:
            made = _rebuild(
                session,
                configs,
                queues=both or queues,
                index=both or index,
                part_size=part_size * _MIB,
                progress=bar_updater(bars),
            )
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    for config, result in zip(configs, made, strict=True):
        click.echo(
            f"{config.root}: log from {result.log_begin} to {result.log_end}; {result.queues} "
            f"consume queues with {result.entries} entries, {result.keys} keys in the index"
        )


def bar_updater(bars: object) -> Progress:
    """Shows what is being done as bars, one for each step."""
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    assert isinstance(bars, Bars)
    tasks: dict[str, TaskID] = {}

    def update(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done)

    return update
