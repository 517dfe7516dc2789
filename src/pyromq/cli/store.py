"""`pyromq store`: inspect, check, back up and repair the files of a broker's store.

The commands for backups are in `cli.backups`, and imported when they run.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import click
import orjson

from pyromq.base.command_options import store_config_option
from pyromq.base.progress import byte_progress
from pyromq.base.settings import ConfigError, with_environment
from pyromq.cli.lazy_group import LazyGroup
from pyromq.protocol.java.properties import parse_properties
from pyromq.raft.offline.dump import RaftFile, RaftFileKind
from pyromq.raft.offline.files import committed_end, find_node
from pyromq.store.config import MessageStoreConfig
from pyromq.store.index.file import IndexFileError
from pyromq.store.offline.check import Violation, check_store, guess_config, is_unclean
from pyromq.store.offline.dump import (
    DumpError,
    Item,
    StoreFile,
    StoreFileKind,
    describe,
    format_time,
)
from pyromq.store.offline.raft_store import entry_directory
from pyromq.store.offline.rebuild import rebuild_store
from pyromq.store.offline.truncate import truncate_store
from pyromq.store.offline.truncate_plan import Truncation
from pyromq.store.results import StoreError

_KINDS = (
    "commit-log",
    "consume-queue",
    "consume-queue-ext",
    "index",
    "checkpoint",
    "json",
    "abort",
    "raft-data",
    "raft-index",
    "raft-text",
)
#: Queues, and values of a table, that `truncate` lists.
_MAX_LISTED: Final = 20
_FILE_LOGGERS: Final = ("pyromq.store.log.segments", "pyromq.store.index.index")

#: Name to the command's module and attribute, and its line in `pyromq store --help`.
COMMANDS: Final = {
    "backup": ("pyromq.cli.backups.command:backup", "Back up a store, also of a running broker."),
    "backups": ("pyromq.cli.backups.command:backups", "List, verify and remove backups."),
    "check": ("pyromq.cli.store:check", "Check every invariant and print each violation."),
    "dump": ("pyromq.cli.store:dump", "Print the content of a store file."),
    "rebuild": ("pyromq.cli.store:rebuild", "Rebuild consume queues and key index from the log."),
    "restore": ("pyromq.cli.backups.command:restore", "Turn a backup into a store."),
    "truncate": ("pyromq.cli.store:truncate", "Truncate the commit log to an offset."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def store() -> None:
    """Inspect, check, back up and repair the files of a broker's store."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--kind", type=click.Choice(_KINDS), help="Set the kind of FILE if it is not recognised."
)
@click.option(
    "--offset",
    type=click.IntRange(0),
    help="Start here: a physical offset in a commit log, a queue offset in a consume queue, a "
    "position in a queue's extension, an entry number in an index, a position in the entries of a "
    "raft node, the index of an entry in its index.",
)
@click.option("--limit", type=click.IntRange(1), help="Print at most this many entries.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per entry.")
@click.option(
    "--hash-slots", type=click.IntRange(1), help="Read an index written with this maxHashSlotNum."
)
def dump(
    file: Path,
    kind: str | None,
    offset: int | None,
    limit: int | None,
    as_json: bool,
    hash_slots: int | None,
) -> None:
    """Print the content of FILE, a store file written by pyromq or Apache RocketMQ.

    Reads segments of the commit log, of consume queues and of their extensions, the key index,
    the checkpoint, the tables under config/, and the files of a raft node under dledger-ID/. A
    broker may be running on the store.

    \b
    Examples
        pyromq store dump data/commitlog/00000000000000000000 --limit 10
        pyromq store dump data/consumequeue/greetings/0/00000000000000000000
        pyromq store dump data/config/topics.json
        pyromq store dump data/checkpoint
        pyromq store dump data/dledger-n0/data/00000000000000000000
    """
    name = "" if kind is None else kind.upper().replace("-", "_")
    try:
        raft_kind = RaftFileKind[name] if name in RaftFileKind.__members__ else None
        raft_file = RaftFile.open(file, raft_kind) if raft_kind or not name else None
        if raft_file is not None:
            with raft_file:
                _dump(raft_file, raft_file.items(offset), limit, as_json)
            return
        with StoreFile.open(file, StoreFileKind[name] if name else None) as opened:
            _dump(opened, opened.items(offset, hash_slots), limit, as_json)
    except DumpError as error:
        raise click.ClickException(str(error)) from error


def _dump(
    opened: StoreFile | RaftFile, items: Iterator[Item], limit: int | None, as_json: bool
) -> None:
    if not as_json:
        click.echo(f"{opened.path}: {opened.kind.value}, {opened.size} bytes", err=True)
    for item in islice(items, limit):
        click.echo(orjson.dumps(item).decode() if as_json else describe(item))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@store_config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per violation.")
def check(directory: Path, config_file: Path | None, as_json: bool) -> None:
    """Check every invariant of the store in DIRECTORY and print each violation.

    Reads the whole log and verifies its CRCs, every consume-queue entry and its extension, the
    key index, the checkpoint and the JSON tables. Changes nothing. Without --config, sizes are
    taken from the files. The exit code is 1 if there is a violation.

    A broker may be running on the store, or on the original of a copied store. The tail moves in
    that case, and data that the next start would truncate or rebuild is not a violation. In the
    store of a raft node, entries that are not committed have no place in queues and index; check
    the entries themselves with pyromq raft check.

    \b
    Examples
        pyromq store check data
        pyromq store check data --json | head
    """
    require_directory(directory)
    config = load_store_config(config_file, directory) if config_file else None
    if is_unclean(directory):
        click.echo(
            f"{directory}: a broker is running here or was not stopped cleanly: the tail may move "
            "during the check",
            err=True,
        )
    count = 0
    try:
        for violation in _violations(directory, config):
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
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    if count:
        click.echo(f"{directory}: {count} violations", err=True)
        raise SystemExit(1)
    click.echo(f"{directory}: no violation", err=True)


def _violations(directory: Path, config: MessageStoreConfig | None) -> Iterator[Violation]:
    with byte_progress() as progress:
        task = progress.add_task("checking", total=None)
        yield from check_store(
            directory,
            config,
            lambda done, total: progress.update(task, completed=done, total=total),
        )


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@store_config_option
@click.option("--queues", is_flag=True, help="Rebuild the consume queues only.")
@click.option("--index", is_flag=True, help="Rebuild the key index only.")
def rebuild(directory: Path, config_file: Path | None, queues: bool, index: bool) -> None:
    """Rebuild the consume queues and the key index in DIRECTORY from the commit log.

    The broker must be stopped. The files are identical to those of Apache RocketMQ; without
    --config they keep the sizes of the present files. Queues of a deleted topic reappear as long
    as the log contains its messages. In the store of a raft node, only committed entries count;
    the broker adds the others when its group has committed them.

    \b
    Examples
        pyromq store rebuild data
        pyromq store rebuild data --index -c broker.conf
    """
    require_directory(directory)
    both = queues == index
    try:
        config = (
            load_store_config(config_file, directory) if config_file else guess_config(directory)
        )
        committed = None
        if entry_directory(config) is not None:
            committed = committed_end(find_node(directory, config))
        with byte_progress() as progress:
            task = progress.add_task("rebuilding", total=None)
            rebuilt = rebuild_store(
                config,
                queues=both or queues,
                index=both or index,
                committed=committed,
                on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    except (StoreError, IndexFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{directory}: log from {rebuilt.log_begin} to {rebuilt.log_end}; {rebuilt.queues} consume "
        f"queues with {rebuilt.entries} entries, {rebuilt.keys} keys in the index"
    )


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "offset",
    type=click.IntRange(0),
    required=True,
    metavar="OFFSET",
    help="Cut everything from this physical offset on. A record must start or end there.",
)
@click.option("--apply", is_flag=True, help="Truncate the log. Without it, nothing is changed.")
@click.option(
    "--backup",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the backup below this directory.  [default: beside DIRECTORY]",
)
@store_config_option
def truncate(
    directory: Path, offset: int, apply: bool, backup: Path | None, config_file: Path | None
) -> None:
    """Truncate the commit log of the store in DIRECTORY to an offset.

    For a replica, or an old master that returns as one, whose log differs from that of its master
    or is longer: started as a replica, it follows from OFFSET. The broker must be stopped.

    Prints which messages, consume-queue entries and index files are cut, and which consumer
    offsets and delay progress are reduced to the new ends of their queues. With --apply, all of
    it is first copied to a new directory, DIRECTORY.truncated-OFFSET-TIME. A killed run is
    completed by running the command again.

    \b
    Examples
        pyromq store truncate data --to 1073741824
        pyromq store truncate data --to 1073741824 --apply -c broker.conf
    """
    require_directory(directory)
    try:
        config = (
            load_store_config(config_file, directory) if config_file else guess_config(directory)
        )
        with _without_lines_about_files(), byte_progress() as progress:
            task = progress.add_task("reading the log", total=None)
            plan = truncate_store(
                config,
                offset,
                apply=apply,
                backup_directory=backup,
                on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    except (StoreError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for line in _describe_truncation(directory, plan):
        click.echo(line)
    if not plan.is_needed:
        click.echo(f"{directory}: nothing to do")
    elif not apply:
        click.echo(f"{directory}: nothing was changed; add --apply to truncate the log")
    else:
        if plan.needs_backup:
            click.echo(f"backup: {plan.backup}")
        click.echo(f"{directory}: the log now ends at {plan.offset}")


@contextlib.contextmanager
def _without_lines_about_files() -> Iterator[None]:
    """Drop the log lines about each file of a queue or the index that is removed."""
    loggers = [logging.getLogger(name) for name in _FILE_LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _describe_truncation(directory: Path, plan: Truncation) -> Iterator[str]:
    yield f"{directory}: log from {plan.log_begin} to {plan.log_end}"
    if plan.size:
        yield f"cut: {plan.size} bytes from {plan.offset} on, {plan.messages} messages" + (
            f" stored from {format_time(plan.first_timestamp)} to "
            f"{format_time(plan.last_timestamp)}"
            if plan.messages
            else ""
        )
    if plan.data_end > plan.log_end:
        yield f"cut: {plan.data_end - plan.log_end} bytes after the log's end, not valid records"
    queues = [
        f"{cut.topic} queue {cut.queue_id}: {cut.entries} entries, ends at {cut.end}"
        for cut in plan.queues
    ]
    yield from _listed(queues, "queues")
    if plan.index_files:
        yield f"index files to rebuild without these messages: {plan.index_files}"
    for edit in plan.tables:
        changes = [
            f"{edit.path.name}: {change.name} from {change.before} to {change.after}"
            for change in edit.changes
        ]
        yield from _listed(changes, f"values of {edit.path.name}")


def _listed(lines: list[str], kind: str) -> Iterator[str]:
    yield from lines[:_MAX_LISTED]
    if len(lines) > _MAX_LISTED:
        yield f"... and {len(lines) - _MAX_LISTED} more {kind}"


def require_directory(directory: Path) -> None:
    """Raise click.ClickException unless it is a directory."""
    if not directory.is_dir():
        raise click.ClickException(
            f"{directory} is not a directory: give the root of a broker's store"
        )


def read_store_properties(file: Path) -> dict[str, str]:
    """Parse a broker's file. Values `${NAME}` without the variable stay: most are not the store's.

    Raises click.ClickException.
    """
    try:
        properties = parse_properties(file.read_bytes())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file}: {error}") from error
    for key, text in properties.items():
        with contextlib.suppress(ConfigError):
            properties |= with_environment({key: text}, os.environ)
    return properties


def load_store_config(file: Path, directory: Path) -> MessageStoreConfig:
    """Load the store's settings; `directory` overrides the file's storePathRootDir."""
    try:
        properties = read_store_properties(file)
        return MessageStoreConfig.load({**properties, "storePathRootDir": str(directory)})[0]
    except ConfigError as error:
        raise click.ClickException(f"{file}: {error}") from error
