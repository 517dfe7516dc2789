"""The command `report`: the input it rejects. tests/spark/test_report.py checks the figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.spark.jobs.report import command
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--topic", "A", "--pattern", "B"], "--topic and --pattern"),
        (
            ["--archive", ".", "--store-path", "."],
            "are mutually exclusive",
        ),
        (["--since", "yesterday"], "--since 'yesterday': expected a time"),
        (["--nameserver", "127.0.0.1:1"], "no NameServer answers"),
    ],
)
def test_mistakes_are_rejected(arguments: list[str], problem: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = CliRunner().invoke(command, [str(page), *arguments])
    assert result.exit_code != 0
    assert problem in result.output
    assert not page.exists()


def test_an_unwritable_page_is_rejected_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        cluster.create_topic("Orders")
        for page in (tmp_path / "file" / "page.html", tmp_path / "none" / "page.html"):
            result = CliRunner().invoke(command, [str(page), "--nameserver", cluster.namesrv])
            assert result.exit_code == 1
            assert f"cannot write {page}: No" in result.output.replace("\n", " ")


def test_topics_are_chosen(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:

        def output_of(*arguments: str) -> str:
            fixed = [str(page), "--nameserver", cluster.namesrv, "--dry-run"]
            return CliRunner().invoke(command, [*fixed, *arguments]).output

        for name in ("Orders", "OrdersOld", "Payments"):
            cluster.create_topic(name)
        assert "Orders, OrdersOld, Payments;" in output_of()
        assert "Orders, OrdersOld;" in output_of("--pattern", "Orders.*")
        assert "Payments;" in output_of("--topic", "Payments")
        assert "there is no topic Other" in output_of("--topic", "Other")
        assert "--pattern" in output_of("--pattern", "(")
    assert not page.exists()
