"""`pyromq raft check`: check the files of a raft node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson

from pyromq.base.command_options import store_config_option
from pyromq.base.progress import byte_progress
from pyromq.cli.store import load_store_config, require_directory
from pyromq.raft.offline.check import Finding, NodeCheck, Remedy
from pyromq.raft.offline.files import NodeFiles, find_node
from pyromq.store.results import StoreError


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@store_config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with everything.")
def check(directory: Path, config_file: Path | None, as_json: bool) -> None:
    """Check the files of the raft node in DIRECTORY, a store or its dledger-ID directory.

    Reads every entry: its header, its place, its index unit, and its record with the CRC. Compares
    the checkpoint and the term with them. Prints what is wrong, where, and what to do. Changes
    nothing. The exit code is 1 if something must be done; what the next start of the broker repairs
    is printed, but no reason for it.

    The node may be running: its tail moves in that case. Queues and index of its store are checked
    by pyromq store check.

    \b
    Examples
        pyromq raft check data/raft-n0
        pyromq raft check data/raft-n0/dledger-n0 --json
    """
    require_directory(directory)
    config = load_store_config(config_file, directory) if config_file else None
    try:
        node = find_node(directory, config)
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    findings: list[Finding] = []
    with byte_progress() as progress:
        task = progress.add_task("checking", total=None)
        run = NodeCheck(
            node,
            data_file_size=0 if config is None else config.mapped_file_size_commit_log,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
        if run.may_move:
            click.echo(
                f"{node.root}: a broker is running here or was not stopped cleanly: the tail may "
                "move during the check",
                err=True,
            )
        for finding in run.findings():
            findings.append(finding)
            if not as_json:
                click.echo(f"{finding}\n    {finding.remedy.value}")
    damages = sum(finding.is_damage for finding in findings)
    if as_json:
        click.echo(orjson.dumps(_value(node, run, findings)).decode())
    else:
        _print_summary(node, run, findings, damages)
    if damages:
        raise SystemExit(1)


def _print_summary(node: NodeFiles, run: NodeCheck, findings: list[Finding], damages: int) -> None:
    entries = "no entries"
    if run.end_index >= 0:
        entries = (
            f"entries {run.begin_index} to {run.end_index} of terms up to {run.end_term}, "
            f"positions {run.begin_position} to {run.end_position}"
        )
    click.echo(f"node {node.node_id}: {entries}; committed up to {run.committed_index}")
    if run.vote is not None:
        voted = f"voted for {run.vote.voted_for}" if run.vote.voted_for else "has not voted"
        click.echo(f"node {node.node_id}: term {run.vote.term}, {voted}")
    repaired = sum(finding.remedy is Remedy.NEXT_START for finding in findings)
    outcome = f"{damages} findings" if damages else "no damage"
    after = f", {repaired} that the next start repairs" if repaired else ""
    click.echo(f"{node.directory}: {outcome}{after}", err=True)


def _value(node: NodeFiles, run: NodeCheck, findings: list[Finding]) -> dict[str, Any]:
    return {
        "node": node.node_id,
        "directory": str(node.directory),
        "beginIndex": run.begin_index,
        "endIndex": run.end_index,
        "endTerm": run.end_term,
        "committedIndex": run.committed_index,
        "beginPosition": run.begin_position,
        "endPosition": run.end_position,
        "currTerm": None if run.vote is None else run.vote.term,
        "voteLeader": None if run.vote is None else run.vote.voted_for,
        "mayMove": run.may_move,
        "findings": [
            {
                "kind": finding.kind.name,
                "file": str(finding.file),
                "position": finding.position,
                "message": finding.message,
                "isDamage": finding.is_damage,
                "remedy": finding.remedy.value,
            }
            for finding in findings
        ],
    }
