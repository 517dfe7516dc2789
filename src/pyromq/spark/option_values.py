"""Read the options that a user gave to a reader or a writer, and reject mistakes by name.

    given = GivenOptions({"TLS": "true"}, known=("nameserver", "tls"))
    given.flag("tls", default=False)           # True

Names are case-insensitive. Every method returns None, or its default, for an option that is not
given, and raises OptionError for a value of the wrong form. Used by the driver, for the options of
reads (`options`) and writes (`sink.options`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from pyromq.base.sizes import GIB, KIB, MIB
from pyromq.remoting.address import AddressError, parse_addresses
from pyromq.spark.origins.settings import TLS_FIELDS
from pyromq.tls.client import Tls

_Value = TypeVar("_Value")

_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {"b": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}
_MAX_LONG: Final = 2**63 - 1
#: All options that `GivenOptions.tls` reads.
TLS_OPTIONS: Final = ("tls", *TLS_FIELDS, "tlsVerify")


class OptionError(ValueError):
    """An option or a value that is not allowed: its name, its value, what is possible."""


class GivenOptions:
    """The options that a user gave, by their proper names."""

    def __init__(
        self, options: Mapping[str, str], known: Collection[str], ignored: Collection[str] = ()
    ) -> None:
        """Raise OptionError for an option that is neither `known` nor `ignored` (lower case)."""
        by_lower_name = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() in by_lower_name:
                self._values[by_lower_name[name.lower()]] = value
            elif name.lower() not in ignored:
                raise OptionError(unknown_name("option", name, known))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def text(self, name: str) -> str | None:
        """Return a value without surrounding spaces; it must not be empty."""
        value = self._values.get(name)
        if value is None:
            return None
        if not value.strip():
            raise OptionError(f"option {name} is empty: give a value or leave it out")
        return value.strip()

    def parsed(
        self,
        name: str,
        parse: Callable[[str], _Value],
        errors: type[Exception],
        expected: str | None = None,
    ) -> _Value | None:
        """Return `parse(value)`; if it raises one of `errors`, `expected` replaces its text."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except errors as error:
            problem = error if expected is None else f"expected {expected}"
            raise OptionError(f"option {name}={text!r:.200}: {problem}") from error

    def number(self, name: str, least: int = 1) -> int | None:
        """Return a whole number."""

        def parse(text: str) -> int:
            if not least <= int(text) <= _MAX_LONG:
                raise ValueError(text)
            return int(text)

        return self.parsed(name, parse, ValueError, f"a whole number, {least} or more")

    def seconds(self, name: str, unit: str, example: str) -> float | None:
        """Return a duration in seconds; `unit` applies to a number without one."""
        milliseconds = self._amount(name, _MILLISECONDS, unit, example)
        return None if milliseconds is None else milliseconds / 1000

    def size(self, name: str, example: str) -> int | None:
        """Return a number of bytes."""
        return self._amount(name, _BYTES, "b", example)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of several words, in lower case."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise OptionError(f"option {name}={text!r:.80}: expected {' or '.join(choices)}")
        return text.lower()

    def flag(self, name: str, default: bool) -> bool:
        """Return whether a value is `true`."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def names(self, name: str, expected: str) -> tuple[str, ...] | None:
        """Return the distinct parts of a value that is separated by commas."""

        def parse(text: str) -> tuple[str, ...]:
            names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
            if not all(names):
                raise ValueError(text)
            return names

        return self.parsed(name, parse, ValueError, expected)

    def addresses(self, name: str) -> tuple[str, ...] | None:
        """Return the parts of a value like `host:port;host:port`."""
        return self.parsed(name, lambda text: tuple(parse_addresses(text)), AddressError)

    def credentials(self) -> tuple[str, str]:
        """Return `accessKey` and `secretKey`: both, or two empty strings."""
        access_key, secret_key = self.text("accessKey"), self.text("secretKey")
        if (access_key is None) != (secret_key is None):
            raise OptionError("options accessKey and secretKey must be given together")
        return access_key or "", secret_key or ""

    def tls(self) -> bool | Tls:
        """Return how connections are encrypted: `tls`, and the options that begin with it."""
        files = (self.text("tlsCa"), self.text("tlsCert"), self.text("tlsKey"))
        fields = (*files, self.text("tlsKeyPassword"), self.text("tlsServerName"))
        verify = self.flag("tlsVerify", True)
        if verify and not any(fields):
            return self.flag("tls", False)
        if not self.flag("tls", False):
            raise OptionError("options tlsCa, tlsCert and the like have no effect without tls=true")
        try:
            return Tls(*fields, verify=verify)
        except ValueError as error:
            raise OptionError(f"options of tls: {error}") from error

    def exclude(self, *names: str) -> None:
        """Reject more than one of these options."""
        both = [name for name in names if name in self._values]
        if len(both) > 1:
            raise OptionError(
                f"options {both[0]} and {both[1]} are mutually exclusive: give only one"
            )

    def need(self, name: str, *others: str) -> None:
        """Reject an option that has no effect without one of the others."""
        if name in self._values and not any(other in self._values for other in others):
            raise OptionError(f"option {name} has no effect without {' or '.join(others)}")

    def _amount(
        self, name: str, units: Mapping[str, int], default_unit: str, example: str
    ) -> int | None:
        def parse(text: str) -> int:
            found = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.lower())
            if found is None or (found[2] or default_unit) not in units:
                raise ValueError(text)
            amount = int(found[1]) * units[found[2] or default_unit]
            if not 0 < amount <= _MAX_LONG:
                raise ValueError(text)
            return amount

        expected = f"a number above 0 with a unit ({', '.join(units)}), for example {example}"
        return self.parsed(name, parse, ValueError, expected)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the error for an unknown option or column, with the nearest known name."""
    by_lower_name = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower_name, n=1)
    if near:
        return f"unknown {kind} {name!r:.80}: did you mean {by_lower_name[near[0]]}?"
    return f"unknown {kind} {name!r:.80}: choose from {', '.join(by_lower_name.values())}"
