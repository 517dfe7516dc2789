"""`pyromq store`: looking into the files of a broker's store, checking and rebuilding them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyromq.cli.lazy_group import HelpfulGroup

if TYPE_CHECKING:
    from rich.progress import Progress

    from pyromq.store.config import MessageStoreConfig

_KINDS = (
    "commit-log",
    "consume-queue",
    "consume-queue-ext",
    "index",
    "checkpoint",
    "json",
    "abort",
)


@click.group(cls=HelpfulGroup)
def store() -> None:
    """Look into the files of a broker's store, check them, make some of them again."""


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(_KINDS), help="What FILE is, if it cannot be recognised.")
@click.option(
    "--offset",
    type=click.IntRange(0),
    help="Where to begin: a physical offset in a commit log, a queue offset in a consume queue, "
    "a place in a queue's extension, an entry's number in an index.",
)
@click.option("--limit", type=click.IntRange(1), help="Show so many pieces at most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per piece.")
@click.option("--hash-slots", type=click.IntRange(1), help="maxHashSlotNum of an index.")
def dump(
    file: Path,
    kind: str | None,
    offset: int | None,
    limit: int | None,
    as_json: bool,
    hash_slots: int | None,
) -> None:
    """Print what is in FILE, a file of a store written by pyromq or Apache RocketMQ.

    Knows segments of the commit log, of consume queues and of their extensions, the key index,
    the checkpoint and the tables under config/. A broker may be running on the store.

    \b
    Examples
        pyromq store dump data/commitlog/00000000000000000000 --limit 10
        pyromq store dump data/consumequeue/greetings/0/00000000000000000000
        pyromq store dump data/config/topics.json
        pyromq store dump data/checkpoint
    """
    import orjson

    from pyromq.store.offline.dump import DumpError, StoreFile, StoreFileKind, describe

    known_kind = StoreFileKind[kind.upper().replace("-", "_")] if kind else None
    try:
        with StoreFile.open(file, known_kind) as opened:
            if not as_json:
                click.echo(f"{file}: {opened.kind.value}, {opened.size} bytes", err=True)
            for item in islice(opened.items(offset, hash_slots), limit):
                click.echo(orjson.dumps(item).decode() if as_json else describe(item))
    except DumpError as error:
        raise click.ClickException(str(error)) from error


_config_option = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The broker's properties file, for the sizes of files and other directories.",
)


@store.command()
@click.argument("directory", type=click.Path(path_type=Path))
@_config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per violation.")
def check(directory: Path, config_file: Path | None, as_json: bool) -> None:
    """Check that the store in DIRECTORY keeps every rule, and name each violation.

    Reads the whole log with its CRCs, every consume-queue entry and its extension, the key
    index, the checkpoint and the JSON tables. Changes nothing. Without --config, sizes are taken
    from the files. Ends with exit code 1 when there is a violation.

    A broker may be running on the store, or on the one that it is a copy of: the tail moves
    then, and what the next start would cut off or make again there is not a violation.

    \b
    Examples
        pyromq store check data
        pyromq store check data --json | head
    """
    import orjson

    from pyromq.store.offline.check import check_store, is_unclean

    _require_directory(directory)
    config = _load_config(config_file, directory) if config_file else None
    if is_unclean(directory):
        click.echo(
            f"{directory}: a broker runs here, or the last stop was not clean: "
            "the tail may move while it is checked",
            err=True,
        )
    count = 0
    with _progress_bar() as progress:
        task = progress.add_task("checking", total=None)
        for violation in check_store(
            directory,
            config,
            lambda done, total: progress.update(task, completed=done, total=total),
        ):
            count += 1
            text = str(violation)
            if as_json:
                fields = {
                    "kind": violation.kind.name,
                    "file": str(violation.file),
                    "position": violation.position,
                    "message": violation.message,
                }
                text = orjson.dumps(fields).decode()
            click.echo(text)
    if count:
        click.echo(f"{directory}: {count} violations", err=True)
        raise SystemExit(1)
    click.echo(f"{directory}: no violation", err=True)


@store.command()
@click.argument("directory", type=click.Path(path_type=Path))
@_config_option
@click.option("--queues", is_flag=True, help="Only the consume queues.")
@click.option("--index", is_flag=True, help="Only the key index.")
def rebuild(directory: Path, config_file: Path | None, queues: bool, index: bool) -> None:
    """Make the consume queues and the key index in DIRECTORY again from the commit log.

    The broker must be stopped. The files come out as Apache RocketMQ makes them; without --config
    they get the sizes of those that are there. The queues of a topic that was deleted come back
    as long as the log has its messages.

    \b
    Examples
        pyromq store rebuild data
        pyromq store rebuild data --index -c broker.conf
    """
    from pyromq.store.index.file import IndexFileError
    from pyromq.store.offline.check import guess_config
    from pyromq.store.offline.rebuild import rebuild_store
    from pyromq.store.results import StoreError

    _require_directory(directory)
    config = _load_config(config_file, directory) if config_file else guess_config(directory)
    both = queues == index
    try:
        with _progress_bar() as progress:
            task = progress.add_task("rebuilding", total=None)
            made = rebuild_store(
                config,
                queues=both or queues,
                index=both or index,
                on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    except (StoreError, IndexFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{directory}: log from {made.log_begin} to {made.log_end}; "
        f"{made.queues} consume queues with {made.entries} entries, {made.keys} keys in the index"
    )


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise click.ClickException(f"{directory} is no directory: name that of a broker's store")


def _load_config(file: Path, directory: Path) -> MessageStoreConfig:
    """The store's settings; `directory` is where it is, whatever the file says."""
    from pyromq.base.settings import ConfigError
    from pyromq.protocol.java.properties import parse_properties
    from pyromq.store.config import MessageStoreConfig

    try:
        properties = parse_properties(file.read_bytes())
        return MessageStoreConfig.load({**properties, "storePathRootDir": str(directory)})[0]
    except (OSError, ValueError, ConfigError) as error:
        raise click.ClickException(f"{file}: {error}") from error


def _progress_bar() -> Progress:
    """On standard error, and only on a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
