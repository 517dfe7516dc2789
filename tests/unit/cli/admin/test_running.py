from __future__ import annotations

import asyncio
import errno
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    NotPermittedError,
    PartialFailureError,
    UnreachableError,
)
from pyromq.cli.admin.running import (
    Run,
    admin_command,
    exit_code,
    showing_partial_results,
)


def run(command: click.Command, *words: str, **environment: str) -> Result:
    return CliRunner(env={"ROCKETMQ_HOME": "", **environment}).invoke(command, words)


@admin_command("example", destructive=True)
@click.option("-t", "--topic", help="Name a topic.")
@click.option("-l", "--list", "as_list", is_flag=True, help="List.")
async def example(run: Run, topic: str | None, as_list: bool) -> None:
    """Show the options."""
    if not run.confirmed(f"Delete {topic}"):
        return
    settings = run.admin.session.settings
    run.result({"topic": topic, "as_list": as_list, "settings": settings})
    run.line(f"{topic} {as_list} {settings.name_servers} {settings.access_key}")


@pytest.mark.parametrize("words", [["-t", "x"], ["-topic", "x"], ["--topic=x"], ["-topic=x"]])
def test_long_options_may_have_one_hyphen(words: list[str]) -> None:
    assert run(example, *words, "-list").output.startswith("x True")


@pytest.mark.parametrize(
    "words",
    [["-n", "a:1"], ["--namesrvAddr", "a:1"], ["--namesrv", "a:1"], ["-namesrvAddr", "a:1"]],
)
def test_name_servers(words: list[str]) -> None:
    assert "('a:1',)" in run(example, *words).output
    assert "('b:2',)" in run(example, NAMESRV_ADDR="b:2").output


def test_wrong_options_are_usage_errors() -> None:
    result = run(example, "-n", "nonsense")
    assert result.exit_code == 2
    assert "host:port" in result.output
    result = run(example, "--access-key", "me")
    assert result.exit_code == 2
    assert "together" in result.output


def test_a_dry_run_changes_nothing() -> None:
    result = run(example, "-t", "x", "--dry-run")
    assert result.exit_code == 0
    assert result.output == "dry run, nothing is changed: Delete x\n"
    assert run(example, "-t", "x", "--dry-run", "--json").output == (
        '{"dry_run":true,"change":"Delete x"}\n'
    )


def test_only_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(example, "-t", "x").exit_code == 0
    asked: list[str] = []

    def confirm(text: str, **_: Any) -> None:
        asked.append(text)
        raise click.Abort

    monkeypatch.setattr(click, "confirm", confirm)
    monkeypatch.setattr("pyromq.cli.admin.running._is_at_terminal", lambda: True)
    result = run(example, "-t", "x")
    assert (result.exit_code, asked) == (1, ["Delete x?"])
    assert run(example, "-t", "x", "--yes").exit_code == 0
    assert len(asked) == 1
    assert sys.stdin is not None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AdminError("no"), 1),
        (NotFoundError("no"), 3),
        (UnreachableError("a:1", "no"), 4),
        (NotPermittedError("a:1", 16, "no"), 5),
        (OSError("disk full"), 1),
        (PartialFailureError("x", ["a:1"], {"b:2": UnreachableError("b:2", "no")}), 1),
        (PartialFailureError("x", [], {"b:2": UnreachableError("b:2", "no")}), 4),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    @admin_command("failing")
    async def failing(run: Run) -> None:
        """Fail."""
        raise error

    assert exit_code(error) == code
    result = run(failing)
    assert result.exit_code == code
    assert result.output == f"Error: {error}\n"


def test_a_watch_survives_failures_until_it_is_interrupted() -> None:
    rounds: list[int] = []

    @admin_command("watching", watch=True)
    async def watching(run: Run) -> None:
        """Count."""
        rounds.append(1)
        run.result(len(rounds))
        await asyncio.sleep(0)
        if len(rounds) == 2:
            raise NotFoundError("a broker restarts")
        if len(rounds) == 4:
            raise KeyboardInterrupt

    result = run(watching, "--watch", "0.1", "--json")
    assert result.exit_code == 130
    assert result.output == "1\n2\nError: a broker restarts\n3\n4\n"


def test_a_watch_that_never_works_ends() -> None:
    @admin_command("watching", watch=True)
    async def watching(run: Run) -> None:
        """Fail."""
        raise NotFoundError("nothing")

    assert run(watching, "--watch", "0.1").exit_code == 3


def test_the_results_of_the_others_are_shown_before_the_error() -> None:
    @admin_command("partly")
    async def partly(run: Run) -> None:
        """Fail at one of two."""
        with showing_partial_results(lambda results: run.line(str(results))):
            raise PartialFailureError("x", ["a:1"], {"b:2": NotFoundError("no")}, ["found"])

    result = run(partly)
    assert result.exit_code == 1
    assert result.output.startswith("('found',)\nError: x failed at b:2 (done at a:1)")


def test_a_reader_that_has_enough_is_not_an_error() -> None:
    command = [sys.executable, "-m", "pyromq", "admin", "help", "updateTopic"]
    line = f"{shlex.join(command)} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert done.stdout.startswith(b"Usage:")
    assert done.stderr == b""

    @admin_command("talking")
    async def talking(run: Run) -> None:
        """Write to a closed pipe."""
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    result = run(talking)
    assert (result.exit_code, result.output) == (1, "")


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("accessKey: me\nsecretKey: secret\n", "me"),
        ("accessKey: 'me' # the tools\nsecretKey: \"se cret\"\n", "me"),
        ("# accessKey: you\naccessKey: me # c\nsecretKey: s\nother:\n  accessKey: no\n", "me"),
        ("accessKey: me\n", ""),
        ("", ""),
    ],
)
def test_the_account_of_tools_yml(tmp_path: Path, content: str, key: str) -> None:
    file = tmp_path / "conf" / "tools.yml"
    file.parent.mkdir()
    file.write_text(content)
    result = run(example, ROCKETMQ_HOME=str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.output.split()[-1] == (key or "('127.0.0.1:9876',)")
    # The command line wins.
    result = run(example, "--access-key", "you", "--secret-key", "x", ROCKETMQ_HOME=str(tmp_path))
    assert result.output.split()[-1] == "you"


def test_a_home_without_tools_yml(tmp_path: Path) -> None:
    assert run(example, ROCKETMQ_HOME=str(tmp_path)).exit_code == 0
    (tmp_path / "conf" / "tools.yml").mkdir(parents=True)
    result = run(example, ROCKETMQ_HOME=str(tmp_path))
    assert result.exit_code == 1
    assert "cannot read" in result.output
