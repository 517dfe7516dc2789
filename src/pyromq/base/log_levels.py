"""Log levels that change at run time: the setting `logLevel` of broker and NameServer.

The value is a level, a level per logger, or both, separated by commas:

    INFO
    WARNING,pyromq.store=DEBUG,pyromq.broker.services.registration=DEBUG

The level without a name is that of all of pyromq; without one, the level of the command line
applies. Loggers that a new value does not name get their former level back. Loggers of other
packages cannot be named.

`toggle_debug` is for a signal: it switches all of pyromq to DEBUG, and back.

Called on the loop by the servers and by `cli.running`. There is one table of levels per process, as
there is one tree of loggers.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from pyromq.base.settings import ConfigError, shown

logger = logging.getLogger(__name__)

ROOT: Final = "pyromq"
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NAME: Final = re.compile(r"pyromq(\.[a-z_0-9]+)*")
#: Loggers that a text may name: each is kept until the process ends.
_MAX_NAMES: Final = 100

#: Levels in effect, by logger.
_applied: dict[str, str] = {}
_is_debugging = False


def parse_levels(text: str | None) -> dict[str, str]:
    """Return the levels by logger. Raises ConfigError."""
    levels: dict[str, str] = {}
    for part in (text or "").split(","):
        name, separator, level = part.strip().rpartition("=")
        level, name = level.strip().upper(), name.strip() if separator else ROOT
        if not part.strip():
            continue
        if level not in LEVELS or not _NAME.fullmatch(name) or len(levels) >= _MAX_NAMES:
            raise ConfigError(
                f"logLevel={shown(text or '')}: expected a level ({', '.join(LEVELS)}), or "
                "logger=level with a logger of pyromq, separated by commas, such as "
                "INFO,pyromq.store=DEBUG"
            )
        levels[name] = level
    return levels


def apply_levels(text: str | None) -> None:
    """Put the levels of a text into effect; None leaves all to the command line."""
    levels = parse_levels(text)
    for name in _applied.keys() - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    _applied.clear()
    _applied.update(levels)
    _set_all()


def toggle_debug() -> None:
    """Switch all of pyromq to DEBUG, or back."""
    global _is_debugging
    _is_debugging = not _is_debugging
    if not _is_debugging:
        logging.getLogger(ROOT).setLevel(logging.NOTSET)
    _set_all()
    logger.warning(
        "log level of pyromq is %s now, by a signal",
        "DEBUG" if _is_debugging else "that of the settings",
    )


def _set_all() -> None:
    for name, level in _applied.items():
        logging.getLogger(name).setLevel(level)
    if _is_debugging:
        logging.getLogger(ROOT).setLevel(logging.DEBUG)
