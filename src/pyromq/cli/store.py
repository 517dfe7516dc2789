"""`pyromq store`: looking into the files of a broker's store."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click

_KINDS = ("commit-log", "consume-queue", "index", "checkpoint", "json", "abort")


@click.group()
def store() -> None:
    """Look into the files of a broker's store. Nothing is ever changed."""


@store.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(_KINDS), help="What FILE is, if it cannot be recognised.")
@click.option(
    "--offset",
    type=click.IntRange(0),
    help="Where to begin: a physical offset in a commit log, a queue offset in a consume queue, "
    "an entry's number in an index.",
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

    Knows segments of the commit log and of consume queues, the key index, the checkpoint and
    the tables under config/. A broker may be running on the store.

    \b
    Examples
        pyromq store dump data/commitlog/00000000000000000000 --limit 10
        pyromq store dump data/consumequeue/greetings/0/00000000000000000000
        pyromq store dump data/config/topics.json
        pyromq store dump data/checkpoint
    """
    import orjson

    from pyromq.store.dump import DumpError, StoreFile, StoreFileKind, describe

    known_kind = StoreFileKind[kind.upper().replace("-", "_")] if kind else None
    try:
        with StoreFile.open(file, known_kind) as opened:
            if not as_json:
                click.echo(f"{file}: {opened.kind.value}, {opened.size} bytes", err=True)
            for piece in islice(opened.pieces(offset, hash_slots), limit):
                click.echo(orjson.dumps(piece).decode() if as_json else describe(piece))
    except DumpError as error:
        raise click.ClickException(str(error)) from error
