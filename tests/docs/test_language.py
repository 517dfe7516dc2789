"""Phrases that read like a translation do not come back.

Each one hides a word that engineers search for. The test reads Python files (comments, docstrings,
strings) and documents; `python tests/docs/test_language.py PATH...` lists the places.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "bench", "docs", "examples", "tools")

#: A pattern, and what to write instead.
REFUSED = {
    r"in one step": "atomically",
    r"the interpreter's lock": "the GIL",
    r"\banew\b": "rebuilt, recreated, again",
    r"\bwhoever\b": "the caller, or whichever noun it is",
    r"\bwho asks\b": "the caller",
    r"\bgo(es)? on\b": "continue, resume",
    r"(?<!here )\bis no (?!longer|more\b|need|match)": "is not a",
    r"\b(is|are|be) tried again\b|, tried again\b": "is retried",
    r"\bmade again\b": "rebuilt, recreated",
    r"\bso many\b": "at most N, that many",
    r"\bso often\b": "up to N times",
    r"\bto the disk\b": "fsync, written to disk",
    r"\bstands?\b(?! for\b|-| up\b)": "is stored, appears, is",
    r"\bthose who\b": "clients that, or whichever noun it is",
    r"\b(is|are|was|were) told\b": "is notified",
    r"\bturns? of the loop\b": "loop iteration",
    r"\bcarried out\b|\bcarries out\b": "applied, run",
    r"\b(under way|on its way|on their way)\b": "in flight",
    r"\bmay be done again\b": "is idempotent",
    r"\b(as good as none|by who\b|of who\b)": "name the subject",
    r"\bcomes? by\b": "arrives, runs",
}


def refused(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the phrase and the advice for every refused phrase."""
    # A phrase may be broken over two lines of a docstring or a comment.
    joined = re.sub(r"\n[ \t]*(?:#:?[ \t]*)?", "\n", text)
    breaks = [found.start() for found in re.finditer("\n", joined)]
    joined = joined.replace("\n", " ")
    for pattern, advice in REFUSED.items():
        for found in re.finditer(pattern, joined, re.IGNORECASE):
            yield bisect_left(breaks, found.start()) + 1, found[0], advice


def texts(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield every Python file and document, other than lists of changes and generated pages."""
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in {".py", ".md"} and "results" not in file.parts:
                yield file


def places(paths: Iterable[Path]) -> list[str]:
    return [
        f"{file}:{line}: {phrase!r}: {advice}"
        for file in texts(paths)
        for line, phrase, advice in sorted(refused(file.read_text()))
    ]


def test_no_refused_phrase_is_in_source_and_documents() -> None:
    assert places([*(ROOT / folder for folder in FOLDERS), *ROOT.glob("*.md")]) == []


@pytest.mark.parametrize(
    "text",
    [
        "Both files change in one step.",
        "# held by\n    # the interpreter's\n    # lock\n",
        "Whoever asks waits.",
        "A queue is no topic.",
        "the offset stands in the file",
    ],
)
def test_a_phrase_is_found(text: str) -> None:
    assert list(refused(text))


@pytest.mark.parametrize(
    "text",
    [
        "There is no queue of that name.",
        "The topic is no longer served.",
        "POP stands for point of presence.",
        "Retry after a backoff.",
    ],
)
def test_idiomatic_text_passes(text: str) -> None:
    assert list(refused(text)) == []


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in places(map(Path, sys.argv[1:])))
