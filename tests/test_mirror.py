"""Every module has its test: src/pyromq/a/b.py is tested by tests/unit/a/test_b.py.

A long test may be several files, with the subject behind the module's name: test_b_subject.py.
"""

from __future__ import annotations

from pathlib import Path

import pyromq

SOURCE = Path(pyromq.__file__).parent
UNIT_TESTS = Path(__file__).parent / "unit"


def missing_tests(source: Path, tests: Path) -> list[str]:
    """The modules under `source` without their test under `tests`."""
    return [
        str(module.relative_to(source))
        for module in sorted(source.rglob("*.py"))
        if module.name != "__init__.py"
        and not _holds_tests(tests / module.relative_to(source).with_name(f"test_{module.name}"))
    ]


def _holds_tests(path: Path) -> bool:
    return path.is_file() and "def test_" in path.read_text()


def test_every_module_has_its_test() -> None:
    assert missing_tests(SOURCE, UNIT_TESTS) == []


def test_a_missing_test_is_found(tmp_path: Path) -> None:
    source, tests = tmp_path / "src", tmp_path / "tests"
    for path in ("src/a/__init__.py", "src/a/b.py", "src/a/c.py", "src/d.py", "tests/a/test_c.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tests / "a/test_b.py").write_text("async def test_something() -> None: ...\n")
    assert missing_tests(source, tests) == ["a/c.py", "d.py"]


def test_every_test_has_its_module() -> None:
    orphans = [
        str(path.relative_to(UNIT_TESTS))
        for path in sorted(UNIT_TESTS.rglob("test_*.py"))
        if not any(module.is_file() for module in _modules_of(path))
    ]
    assert orphans == []


def _modules_of(test: Path) -> list[Path]:
    """The modules that a test may be of, by its name."""
    words = test.stem.removeprefix("test_").split("_")
    directory = SOURCE / test.relative_to(UNIT_TESTS).parent
    return [directory / f"{'_'.join(words[:count])}.py" for count in range(len(words), 0, -1)]
