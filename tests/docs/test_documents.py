"""The documents are true: links, files, commands, settings and snippets are those of the code."""

from __future__ import annotations

import asyncio
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pyromq.cli.main import main
from pyromq.testing import Cluster
from tests.interop.java_programs import CLIENT, compiled, javac_or_skip
from tests.support.apache_rocketmq import java_or_skip

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "pyromq"
README = ROOT / "README.md"
FOR_READERS = ROOT / "docs" / "for-rocketmq-readers.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
LIMITS = ROOT / "docs" / "limits.md"
GUIDE = ROOT / "docs" / "client.md"
ADMIN_GUIDE = ROOT / "docs" / "admin.md"
FRONT_DOOR = ROOT / "docs" / "README.md"
JAVA_GUIDE = ROOT / "docs" / "java.md"
REFERENCE = ROOT / "docs" / "reference" / "client.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench/README.md"])

NAMESRV = "127.0.0.1:9876"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE_CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
#: What is meant as a file or folder of this repository, in backticks.
FILE_NAME = re.compile(r"(?:src|tests|docs|bench|examples|\.ci)/[\w./-]+|[\w/]+\.py|[A-Z]+\.md")
#: Named, but only there after a run.
MADE_BY_RUNS = {"bench/results/"}


def snippets(document: Path, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(document.read_text()) if kind == language]


every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def test_the_expected_documents_are_there() -> None:
    names = {str(document.relative_to(ROOT)) for document in DOCUMENTS}
    assert names >= {
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/README.md",
        "docs/features.md",
        "docs/for-rocketmq-readers.md",
        "docs/glossary.md",
        "docs/configuration.md",
        "docs/client.md",
        "docs/reference/client.md",
        "docs/adr/README.md",
    }


def test_the_front_door_leads_to_every_page() -> None:
    linked = {(FRONT_DOOR.parent / target).resolve() for target in LINK.findall(prose(FRONT_DOOR))}
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"}
    assert pages - linked - {FRONT_DOOR} == set()


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 250


@every_document
def test_relative_links_work(document: Path) -> None:
    for target in LINK.findall(prose(document)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), f"{document.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{document.name} links to {target}"


@every_document
def test_named_files_exist(document: Path) -> None:
    for name in set(named_files(document)) - MADE_BY_RUNS:
        places = (ROOT / name, PACKAGE / name, document.parent / name)
        assert any(place.exists() for place in places), f"{document.name} names {name}"


def test_every_module_is_in_the_table_for_rocketmq_readers() -> None:
    modules = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if not path.name.startswith("__")
    }
    missing = modules - set(named_files(FOR_READERS))
    assert not missing, f"name them in {FOR_READERS.relative_to(ROOT)}: {sorted(missing)}"


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "adr"
    notes = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert notes == set(LINK.findall((folder / "README.md").read_text()))
    assert all(re.match(r"\d{4}-\d{2}-\d{2}-[a-z-]+\.md", name) for name in notes)


def test_readme_names_the_two_commands() -> None:
    mentioned = make_targets(README)
    assert {"run", "test"} <= mentioned


@every_document
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert make_targets(document) <= targets


@every_document
def test_commands_and_options_exist(document: Path) -> None:
    for line, is_whole in pyromq_commands(document):
        try:
            parse_command(line)
        except click.MissingParameter:
            assert not is_whole, f"{document.name}: {line}"
        except click.UsageError as error:
            if "does not exist" in error.format_message() and "Directory '/" in str(error):
                continue  # a directory of the reader's
            pytest.fail(f"{document.name}: {line}: {error.format_message()}")


def test_readme_shows_every_command() -> None:
    shown = {line.split()[1] for line, _ in pyromq_commands(README)}
    assert shown - {"--version"} == set(main.list_commands(click.Context(main)))


def test_configuration_page_is_up_to_date() -> None:
    render: Callable[[], str] = runpy.run_path(str(ROOT / "docs" / "generate_configuration.py"))[
        "render"
    ]
    assert CONFIGURATION.read_text() == render(), (
        "run .venv/bin/python docs/generate_configuration.py"
    )


def test_limits_page_is_up_to_date_and_complete() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate_limits.py"))
    assert LIMITS.read_text() == page["render"](), "run .venv/bin/python docs/generate_limits.py"
    assert page["undeclared_constants"]() == [], "add each to FIXED or INTERNAL in that file"
    assert page["vanished_constants"]() == [], "remove each from INTERNAL in that file"


def test_reference_pages_are_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate_reference.py"))
    advice = "run .venv/bin/python docs/generate_reference.py"
    assert REFERENCE.read_text() == page["render"](), advice
    assert page["ADMIN_PAGE"].read_text() == page["render_admin"](), advice


def test_readme_s_test_works(rocketmq: Cluster, rocketmq_topic: str) -> None:
    _, _, snippet, _ = snippets(README, "python")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(snippet, "README.md", "exec"), names)
    names["test_an_order_arrives"](rocketmq, rocketmq_topic)


def test_readme_s_python_clients_work(rocketmq: Cluster) -> None:
    asynchronous, synchronous, *_ = snippets(README, "python")
    first, second = printed_by(asynchronous, rocketmq).splitlines()
    assert first.startswith("SEND_OK MessageQueue(topic='orders'")
    assert second == "new one book"
    assert printed_by(synchronous, rocketmq) == "hello\n"


@pytest.mark.parametrize("number", range(len(snippets(GUIDE, "python"))))
def test_the_guide_s_snippets_are_whole(number: int, rocketmq: Cluster) -> None:
    snippet = snippets(GUIDE, "python")[number].replace(NAMESRV, rocketmq.namesrv)
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(snippet, "docs/client.md", "exec"), names)
    if "task" in names:
        assert names["task"]("order-17")
        names["producer"].close()
    if "rows" in snippet:
        names["publish"](["a", "b"])
    elif "publish" in names:
        asyncio.run(names["publish"]())


async def test_the_admin_guide_s_snippets_work(
    rocketmq: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    asynchronous, synchronous = (
        snippet.replace(NAMESRV, rocketmq.namesrv) for snippet in snippets(ADMIN_GUIDE, "python")
    )
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(asynchronous, "docs/admin.md", "exec"), names)
    await names["main"]()
    assert capsys.readouterr().out.splitlines()[-1] == "('orders',)"
    exec(compile(synchronous, "docs/admin.md", "exec"), names)
    assert await asyncio.to_thread(names["lags"], rocketmq.brokers[0].address) == 0


@pytest.mark.interop
def test_the_java_guide_s_client_compiles(tmp_path: Path) -> None:
    java_or_skip()
    javac_or_skip()
    (snippet,) = snippets(JAVA_GUIDE, "java")
    (tmp_path / "Hello.java").write_text(snippet)
    compiled(tmp_path, CLIENT)


# What is read from a document


def prose(document: Path) -> str:
    """The text without its blocks of code."""
    return FENCE.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """The names of a document's headings in links, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(prose(document))
    }


def named_files(document: Path) -> list[str]:
    return [name for name in INLINE_CODE.findall(prose(document)) if FILE_NAME.fullmatch(name)]


def make_targets(document: Path) -> set[str]:
    """Targets of every `make x` that stands in code."""
    return set(re.findall(r"(?:^|`| )make (\w+)", "\n".join(code_lines(document)), re.MULTILINE))


def pyromq_commands(document: Path) -> Iterator[tuple[str, bool]]:
    """Every line `pyromq ...` in code; whether it stands in a block, so that it can be run."""
    for language, block in FENCE.findall(document.read_text()):
        if language in ("", "sh", "bash"):
            for line in block.splitlines():
                if line.strip().startswith("pyromq "):
                    yield line.strip(), True
    for code in INLINE_CODE.findall(prose(document)):
        if code.startswith("pyromq "):
            yield code, False


def code_lines(document: Path) -> list[str]:
    lines = [
        line for _, block in FENCE.findall(document.read_text()) for line in block.splitlines()
    ]
    return lines + [f"`{code}`" for code in INLINE_CODE.findall(prose(document))]


def parse_command(line: str) -> None:
    """Parse a command line as the command would, without running it."""
    words = list(_until_redirection(shlex.split(line.replace("…", ""), comments=True)))[1:]
    command: click.Command = main
    while isinstance(command, click.Group):
        if not words:
            raise click.MissingParameter(f"{line} needs a command", param_type="argument")
        if words == ["--version"]:
            return
        found = command.get_command(click.Context(command), words[0])
        if found is None and command.invoke_without_command:
            break  # `pyromq broker` with options
        if found is None:
            raise click.UsageError(f"there is no command {words[0]}")
        command, words = found, words[1:]
    with command.make_context(command.name, words):
        pass


def _until_redirection(words: list[str]) -> Iterator[str]:
    for word in words:
        if word in (">", "|", "<"):
            return
        yield word


def printed_by(program: str, cluster: Cluster) -> str:
    assert NAMESRV in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(NAMESRV, cluster.namesrv)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
