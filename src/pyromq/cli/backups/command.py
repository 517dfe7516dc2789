"""`pyromq store backup`, `pyromq store restore` and `pyromq store backups`.

`cli.store` lists these commands; the work is in `store.backup` and `raft.offline.backup`. Called on
the main thread.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from pyromq.base.command_options import OptionDecorator, store_config_option
from pyromq.base.progress import byte_progress
from pyromq.base.settings import ConfigError
from pyromq.base.sizes import MIB
from pyromq.cli.lazy_group import HelpfulGroup
from pyromq.cli.store import load_store_config, read_store_properties, require_directory
from pyromq.raft.offline.backup import complete_node, raft_node_of
from pyromq.store.backup.copying import Meter, Throttle
from pyromq.store.backup.making import Made, back_up
from pyromq.store.backup.repository import Backup, Repository, read_backup
from pyromq.store.backup.restoring import Restored, restore_backup, settings_for
from pyromq.store.backup.verifying import verify_backup
from pyromq.store.index.file import IndexFileError
from pyromq.store.offline.check import guess_config
from pyromq.store.results import StoreError

#: Keys of a broker's settings that a manifest repeats.
_IDENTITY = ("brokerClusterName", "brokerName", "brokerId", "brokerRole")

_FAILURES = (StoreError, IndexFileError, OSError, ConfigError)

_rate_option: OptionDecorator = click.option(
    "--max-mb-per-second",
    "rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Copy at most this many megabytes (1,000,000 bytes) per second.",
)
_json_option: OptionDecorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object."
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Put the backup into this directory, which holds all backups of this store.",
)
@store_config_option
@click.option(
    "--keep",
    type=click.IntRange(1),
    help="Keep this many backups, the new one included, and remove older ones.",
)
@click.option(
    "--full", is_flag=True, help="Copy everything, also what an earlier backup has already."
)
@click.option("--verify", is_flag=True, help="Read the new backup again and compare checksums.")
@_rate_option
@_json_option
def backup(
    directory: Path,
    target: Path,
    config_file: Path | None,
    keep: int | None,
    full: bool,
    verify: bool,
    rate: float | None,
    as_json: bool,
) -> None:
    """Back up the store in DIRECTORY, also while a broker runs on it.

    Every message that was acknowledged before the command started is in the backup, with topics,
    groups and consumer offsets. Consume queues and key index are not: a restore rebuilds them.

    Each backup is a directory that holds everything. Segments of the log that an earlier backup has
    already are hard links, so a backup copies only what is new, and each one can be removed
    without harm to the others. A run that is killed leaves earlier backups alone; the next one
    continues. A link shares the damage of its file: if --verify or pyromq store backups verify
    finds any, make the next backup with --full.

    \b
    Examples
        pyromq store backup /var/lib/pyromq --to /backup/broker-a -c broker.properties
        pyromq store backup data --to backups --keep 7 --max-mb-per-second 100
    """
    require_directory(directory)
    try:
        config = (
            load_store_config(config_file, directory) if config_file else guess_config(directory)
        )
        with byte_progress() as progress:
            task = progress.add_task("copying the log", total=None)
            made = back_up(
                config,
                Repository(target),
                raft_node=raft_node_of(config),
                identity=_identity(config_file),
                keep=keep,
                full=full,
                meter=Meter(
                    _throttle(rate),
                    lambda done, total: progress.update(task, completed=done, total=total),
                ),
            )
        problems = _verified(made.backup, rate) if verify else []
    except _FAILURES as error:
        raise click.ClickException(_text(error)) from error
    if as_json:
        click.echo(orjson.dumps(_made_value(made) | {"problems": problems}).decode())
    else:
        _print_made(made, problems)
    if problems:
        raise SystemExit(1)


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@store_config_option
@click.option(
    "--raft-group",
    type=click.Choice(["restored", "running"]),
    help="For a node of a raft group: whether all nodes are restored from this backup, or this "
    "one joins the others, which are running.",
)
@click.option(
    "--raft-id", metavar="ID", help="Restore as this node of the group.  [default: as backed up]"
)
@_rate_option
@_json_option
def restore(
    source: Path,
    directory: Path,
    config_file: Path | None,
    raft_group: str | None,
    raft_id: str | None,
    rate: float | None,
    as_json: bool,
) -> None:
    """Restore BACKUP into DIRECTORY, which must be empty.

    BACKUP is one backup, or a directory of backups, of which the newest complete one is taken.
    Compares all checksums, copies the log and the tables, and rebuilds consume queues and key
    index. A broker can start on DIRECTORY afterwards, also under another name. Run the command
    again if it was interrupted; no broker starts on an incomplete store.

    Pass -c if the broker has its commit log elsewhere or other sizes of queue files.

    \b
    Examples
        pyromq store restore /backup/broker-a /var/lib/pyromq -c broker.properties
        pyromq store restore backups/20261117T040000Z data
        pyromq store restore backups data --raft-group restored --raft-id n1
    """
    try:
        chosen = _choose(source)
        properties = _read_properties(config_file)
        properties |= _raft_settings(chosen, raft_group, raft_id, properties)
        config = settings_for(chosen, directory, properties)
        with byte_progress() as progress:
            copying = progress.add_task("copying the log", total=None)
            rebuilding = progress.add_task("rebuilding queues and index", total=None, visible=False)

            def rebuild_progress(done: int, total: int) -> None:
                progress.update(rebuilding, completed=done, total=total, visible=True)

            def complete_raft() -> None:
                complete_node(config, chosen.manifest, must_catch_up=raft_group == "running")

            restored = restore_backup(
                chosen,
                config,
                complete_raft=complete_raft if chosen.manifest.raft is not None else None,
                meter=Meter(
                    _throttle(rate),
                    lambda done, total: progress.update(copying, completed=done, total=total),
                ),
                on_rebuild=rebuild_progress,
            )
    except _FAILURES as error:
        raise click.ClickException(_text(error)) from error
    if as_json:
        click.echo(orjson.dumps(_restored_value(chosen, directory, restored)).decode())
        return
    rebuilt = restored.rebuilt
    for change in restored.changes:
        click.echo(f"reduced {change.name} from {change.before} to {change.after}")
    click.echo(
        f"{directory}: restored {chosen.directory}; log from {rebuilt.log_begin} to "
        f"{rebuilt.log_end}, {rebuilt.queues + restored.empty_queues} consume queues with "
        f"{rebuilt.entries} entries, {rebuilt.keys} keys in the index"
    )


@click.group(cls=HelpfulGroup)
def backups() -> None:
    """List, verify and remove backups of a store."""


@backups.command(name="list")
@click.argument("directory", type=click.Path(path_type=Path))
@_json_option
def list_backups(directory: Path, as_json: bool) -> None:
    """List the complete backups in DIRECTORY, oldest first.

    \b
    Example
        pyromq store backups list /backup/broker-a
    """
    try:
        repository = Repository(directory)
        found, leftovers = repository.backups(), repository.leftovers()
    except _FAILURES as error:
        raise click.ClickException(_text(error)) from error
    if as_json:
        value = {
            "backups": [_value(each) for each in found],
            "incomplete": [path.name for path in leftovers],
        }
        click.echo(orjson.dumps(value).decode())
        return
    for each in found:
        click.echo(_describe(each))
    for path in leftovers:
        click.echo(f"{path.name}: incomplete, the next backup replaces it")
    if not found and not leftovers:
        click.echo(f"{directory}: no backups", err=True)


@backups.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--all", "every", is_flag=True, help="Verify every backup of the directory BACKUP.")
@_rate_option
@_json_option
def verify(source: Path, every: bool, rate: float | None, as_json: bool) -> None:
    """Read BACKUP and compare sizes and checksums with its manifest.

    BACKUP is one backup, or a directory of backups, of which the newest complete one is taken. The
    exit code is 1 if a file is missing or damaged.

    \b
    Examples
        pyromq store backups verify /backup/broker-a
        pyromq store backups verify /backup/broker-a/20261117T040000Z --max-mb-per-second 200
    """
    try:
        chosen = Repository(source).backups() if every else [_choose(source)]
        problems = {each.directory: _verified(each, rate) for each in chosen}
    except _FAILURES as error:
        raise click.ClickException(_text(error)) from error
    if as_json:
        value = [
            {"backup": str(directory), "problems": found} for directory, found in problems.items()
        ]
        click.echo(orjson.dumps(value).decode())
    else:
        for directory, found in problems.items():
            for problem in found:
                click.echo(problem)
            click.echo(f"{directory}: {len(found) or 'no'} damaged files", err=True)
    if any(problems.values()):
        raise SystemExit(1)


@backups.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--keep", type=click.IntRange(1), required=True, help="Keep this many backups.")
def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest backups of DIRECTORY, and what killed runs left.

    \b
    Example
        pyromq store backups prune /backup/broker-a --keep 7
    """
    require_directory(directory)
    repository = Repository(directory)
    try:
        with repository.locked():
            doomed = [each.directory for each in repository.backups()[:-keep]]
            for path in (*doomed, *repository.leftovers()):
                repository.remove(path)
                click.echo(f"removed {path.name}")
    except _FAILURES as error:
        raise click.ClickException(_text(error)) from error


def _choose(source: Path) -> Backup:
    """Return the backup in a directory, or the newest of a directory of backups."""
    found = Repository(source).backups()
    return found[-1] if found else read_backup(source)


def _verified(chosen: Backup, rate: float | None) -> list[str]:
    with byte_progress() as progress:
        task = progress.add_task("verifying", total=None)
        meter = Meter(
            _throttle(rate),
            lambda done, total: progress.update(task, completed=done, total=total),
        )
        return list(verify_backup(chosen, meter))


def _raft_settings(
    chosen: Backup, raft_group: str | None, raft_id: str | None, properties: dict[str, str]
) -> dict[str, str]:
    """Return settings that make the restored store one of a raft node, if the backup is of one."""
    raft = chosen.manifest.raft
    if raft is None:
        if raft_group is not None or raft_id is not None:
            raise StoreError(f"{chosen.directory} is not the backup of a node of a raft group")
        return {}
    if raft_group is None:
        raise StoreError(
            f"{chosen.directory} is of node {raft.node_id} of a raft group: pass --raft-group "
            "restored if all nodes are restored from this backup, or --raft-group running if this "
            "node joins the others"
        )
    node_id = raft_id or properties.get("dLegerSelfId") or raft.node_id
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": properties.get("dLegerGroup") or "restored",
        "dLegerPeers": properties.get("dLegerPeers") or f"{node_id}-127.0.0.1:40911",
        "dLegerSelfId": node_id,
    }


def _read_properties(file: Path | None) -> dict[str, str]:
    return {} if file is None else read_store_properties(file)


def _identity(file: Path | None) -> dict[str, str]:
    properties = _read_properties(file)
    return {key: properties[key] for key in _IDENTITY if key in properties}


def _throttle(rate: float | None) -> Throttle:
    return Throttle(None if rate is None else rate * 1_000_000)


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _value(each: Backup) -> dict[str, Any]:
    manifest = each.manifest
    return {
        "name": manifest.name,
        "directory": str(each.directory),
        "started": manifest.started,
        "finished": manifest.finished,
        "source": manifest.source,
        "logBegin": manifest.log_begin,
        "logEnd": manifest.log_end,
        "size": manifest.size,
        "raftId": manifest.raft and manifest.raft.node_id,
    }


def _made_value(made: Made) -> dict[str, Any]:
    return {
        **_value(made.backup),
        "copied": made.copied,
        "linked": made.linked,
        "removed": list(made.removed),
    }


def _restored_value(chosen: Backup, directory: Path, restored: Restored) -> dict[str, Any]:
    rebuilt = restored.rebuilt
    return {
        "backup": str(chosen.directory),
        "directory": str(directory),
        "logBegin": rebuilt.log_begin,
        "logEnd": rebuilt.log_end,
        "queues": rebuilt.queues + restored.empty_queues,
        "entries": rebuilt.entries,
        "keys": rebuilt.keys,
        "changes": [change._asdict() for change in restored.changes],
    }


def _describe(each: Backup) -> str:
    manifest = each.manifest
    moment = datetime.fromtimestamp(manifest.started / 1000, UTC)
    seconds = (manifest.finished - manifest.started) / 1000
    of = manifest.source.get("brokerName") or manifest.source.get("root")
    return (
        f"{each.directory.name}: {moment:%Y-%m-%d %H:%M:%S} UTC, {seconds:.1f} s, {of}, log from "
        f"{manifest.log_begin} to {manifest.log_end}, {manifest.size / MIB:.1f} MiB"
    )


def _print_made(made: Made, problems: list[str]) -> None:
    for problem in problems:
        click.echo(problem)
    for name in made.removed:
        click.echo(f"removed {name}")
    manifest = made.backup.manifest
    click.echo(
        f"{made.backup.directory}: log from {manifest.log_begin} to {manifest.log_end}; copied "
        f"{made.copied / MIB:.1f} MiB, {made.linked / MIB:.1f} MiB were in earlier backups"
    )
