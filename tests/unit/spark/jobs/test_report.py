"""The command of the report: what it refuses; its figures are tested on the engine."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pyromq.spark.jobs.options import check_writable
from pyromq.spark.jobs.report import command
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--topic", "A", "--pattern", "B"], "--topic and --pattern"),
        (["--archive", ".", "--store-path", "."], "--archive and --store-path"),
        (["--since", "yesterday"], "--since 'yesterday': expected a time"),
        (["--nameserver", "127.0.0.1:1"], "no NameServer answers"),
    ],
)
def test_what_is_refused(arguments: list[str], problem: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    told = CliRunner().invoke(command, [str(page), *arguments])
    assert told.exit_code != 0
    assert problem in told.output
    assert not page.exists()


def test_a_page_that_cannot_be_written_is_refused_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        cluster.create_topic("Orders")
        for page in (tmp_path / "file" / "page.html", tmp_path / "none" / "page.html"):
            told = CliRunner().invoke(command, [str(page), "--nameserver", cluster.namesrv])
            assert told.exit_code == 1
            assert f"{page} cannot be written: No" in told.output.replace("\n", " ")
    with pytest.raises(click.ClickException, match="cannot be written: Is a directory"):
        check_writable(tmp_path / "directory")
    check_writable(tmp_path / "new.html")
    check_writable(tmp_path / "file")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["directory", "file"]


def test_topics_are_chosen(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:

        def told(*arguments: str) -> str:
            fixed = [str(page), "--nameserver", cluster.namesrv, "--dry-run"]
            return CliRunner().invoke(command, [*fixed, *arguments]).output

        for name in ("Orders", "OrdersOld", "Payments"):
            cluster.create_topic(name)
        assert "Orders, OrdersOld, Payments;" in told()
        assert "Orders, OrdersOld;" in told("--pattern", "Orders.*")
        assert "Payments;" in told("--topic", "Payments")
        assert "there is no topic Other" in told("--topic", "Other")
        assert "--pattern" in told("--pattern", "(")
    assert not page.exists()
