"""The result of a check, as a plain value. Created by the checks, printed by `command`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    #: Works, but will hurt under load or after a failure.
    WARN = "warn"
    #: Does not work, or loses messages.
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    #: What was examined, in a few words: "open files".
    check: str
    level: Level
    #: What was found.
    what: str
    #: Why it matters, and what to do; empty if all is well.
    why: str = ""
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the fields for `--json`."""
        return {
            "check": self.check,
            "level": self.level.value,
            "what": self.what,
            "why": self.why,
            "advice": self.advice,
        }


def ok(check: str, what: str) -> Finding:
    """Return a finding of something that is as it should be."""
    return Finding(check, Level.OK, what)


def warn(check: str, what: str, why: str, advice: str) -> Finding:
    """Return a finding that should be looked at."""
    return Finding(check, Level.WARN, what, why, advice)


def fail(check: str, what: str, why: str, advice: str) -> Finding:
    """Return a finding that must be dealt with."""
    return Finding(check, Level.FAIL, what, why, advice)
