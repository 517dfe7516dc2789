from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pyromq.base import log_levels
from pyromq.base.log_levels import apply_levels, parse_levels, toggle_debug
from pyromq.base.settings import ConfigError


@pytest.fixture(autouse=True)
def levels(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO)  # of the root, as the command line sets it
    yield
    apply_levels(None)
    if log_levels._is_debugging:
        toggle_debug()


def level_of(name: str) -> str:
    return logging.getLevelName(logging.getLogger(name).getEffectiveLevel())


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        (None, {}),
        ("", {}),
        ("info", {"pyromq": "INFO"}),
        (" WARNING , pyromq.store = debug ,", {"pyromq": "WARNING", "pyromq.store": "DEBUG"}),
        ("pyromq.broker.services.stats=ERROR", {"pyromq.broker.services.stats": "ERROR"}),
    ],
)
def test_texts(text: str | None, levels: dict[str, str]) -> None:
    assert parse_levels(text) == levels


@pytest.mark.parametrize(
    "text",
    [
        "LOUD",
        "pyromq.store",
        "pyromq.store=",
        "=INFO",
        "asyncio=DEBUG",
        "pyromqx=DEBUG",
        "pyromq..a=INFO",
        "pyromq.a b=INFO",
        ",".join(f"pyromq.a{number}=INFO" for number in range(101)),
    ],
)
def test_bad_texts(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^logLevel=.*: expected a level \(DEBUG, "):
        parse_levels(text)


def test_a_new_text_replaces_the_former() -> None:
    apply_levels("WARNING,pyromq.store=DEBUG")
    assert level_of("pyromq.broker") == "WARNING"
    assert level_of("pyromq.store.flush") == "DEBUG"
    apply_levels("pyromq.broker=ERROR")
    assert level_of("pyromq.broker") == "ERROR"
    assert level_of("pyromq.store.flush") == "INFO"
    apply_levels(None)
    assert level_of("pyromq.broker") == "INFO"


def test_a_bad_text_changes_nothing() -> None:
    apply_levels("ERROR")
    with pytest.raises(ConfigError):
        apply_levels("pyromq=DEBUG,x")
    assert level_of("pyromq") == "ERROR"


def test_debug_on_and_off(caplog: pytest.LogCaptureFixture) -> None:
    apply_levels("WARNING,pyromq.store=ERROR")
    toggle_debug()
    assert level_of("pyromq.broker") == "DEBUG"
    assert level_of("pyromq.store") == "ERROR"  # it was named
    apply_levels("WARNING")
    assert level_of("pyromq.broker") == "DEBUG"
    toggle_debug()
    assert level_of("pyromq.broker") == "WARNING"
    assert "log level of pyromq is DEBUG now" in caplog.text
    assert "that of the settings" in caplog.text
