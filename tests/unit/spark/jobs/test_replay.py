from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.client import Message, Producer
from pyromq.spark.jobs.replay import command
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES

CLUSTER = ["--source-nameserver", "a:1", "--topic", "T"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give either --archive or --source-nameserver"),
        (["--source-nameserver", "a:1"], "give either --topic or --pattern"),
        ([*CLUSTER, "--pattern", "x"], "are mutually exclusive"),
        (["--source-nameserver", "a:1", "--pattern", "("], "--pattern '('"),
        ([*CLUSTER, "--nameserver", "a:1"], "give another --to-topic"),
        ([*CLUSTER, "--nameserver", "a:1", "--to-topic", "T"], "give another --to-topic"),
        ([*CLUSTER, "--to-topic", "a b"], "--to-topic: topic 'a b' is not a legal name"),
        ([*CLUSTER, "--since", "yesterday"], "--since 'yesterday': expected a time"),
        ([*CLUSTER, "--shift", "later"], "--shift 'later': expected now, or a duration"),
        ([*CLUSTER, "--pace", "0"], "--pace"),
        ([*CLUSTER, "--rate", "0"], "--rate"),
        (["--archive", __file__], "is a file"),
    ],
)
def test_mistakes_are_reported_before_the_start(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert problem in result.output


def test_a_dry_run_shows_the_plan() -> None:
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        with Producer.sync(cluster.namesrv) as producer:
            producer.send_batch([Message("Orders", b"x")] * 5)
        result = CliRunner().invoke(
            command,
            [
                *("--source-nameserver", cluster.namesrv, "--topic", "Orders", "--dry-run"),
                *("--nameserver", cluster.namesrv, "--to-topic", "Again"),
            ],
        )
    assert result.exit_code == 0, result.output
    assert "would replay: Orders" in result.output
    assert "up to offset 5" in result.output
    assert f"to Again of {cluster._namesrv}" in result.output


def test_a_directory_without_an_archive(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--archive", str(tmp_path), "--dry-run"])
    assert result.exit_code == 1
    assert "is not an archive" in result.output
