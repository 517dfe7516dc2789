"""Configuration classes whose fields are Java's configuration keys.

A component's configuration is a frozen dataclass. Each field is made by `setting`,
which ties together the Java key, the default, the legal range and a sentence of
documentation; loading, printing and the reference page all follow from the fields:

* `load_settings` turns the table of a `.properties` file into an instance. A value that
  does not fit is a `ConfigError` that names key, value and what is expected (Java keeps
  the default silently, which hides typing mistakes).
* `format_settings` prints `key=value` lines in the order of the fields, as Java's
  `-p` and `-m` options do.
* `unknown_key_hint` says which known key a mistyped one resembles.

Pure. Used by the configuration modules of store, broker and NameServer at start-up.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

Config = TypeVar("Config")

#: Characters of a setting that is a text: far above any path or list of addresses.
MAX_TEXT_LENGTH = 16 * 1024
#: What no path, name or address holds, and what would forge lines in files and logs.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class ConfigError(ValueError):
    """A setting that cannot be used; the message names key, value and what is expected."""


def setting(
    key: str,
    default: Any = dataclasses.MISSING,
    doc: str = "",
    *,
    default_factory: Callable[[], Any] | None = None,
    important: bool = False,
    live: bool = False,
    bits: int = 32,
    minimum: int | None = None,
    maximum: int | None = None,
    limit: str = "",
) -> Any:
    """A dataclass field that is the Java key `key`.

    `important` marks the keys that Java prints with `-m`; `bits` is 64 for Java's `long`. A
    `live` one may be changed while its owner runs: the code reads it anew each time. `limit`
    marks a setting that protects the server from its peers, and says what a peer gets when
    it reaches the limit; docs/limits.md is generated from these.
    """
    bound = 1 << (bits - 1)
    metadata = {
        "key": key,
        "doc": doc,
        "important": important,
        "live": live,
        "minimum": -bound if minimum is None else minimum,
        "maximum": bound - 1 if maximum is None else maximum,
        "limit": limit,
    }
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def load_settings(
    config_class: type[Config], properties: Mapping[str, str]
) -> tuple[Config, list[str]]:
    """Build a configuration from a properties table.

    Returns it with the keys that are none of its own, in the order of the table. Defaults
    stay for keys that are not in the table.
    """
    by_key = {item.key: item for item in settings_of(config_class)}
    values: dict[str, Any] = {}
    others: list[str] = []
    for key, text in properties.items():
        item = by_key.get(key)
        if item is None:
            others.append(key)
        else:
            values[item.attribute] = item.parse(text)
    return config_class(**values), others


def format_settings(config: object, *, only_important: bool = False) -> str:
    """`key=value` lines, one per setting; an unset value prints as nothing, as in Java."""
    return "".join(
        f"{item.key}={item.format(getattr(config, item.attribute))}\n"
        for item in settings_of(type(config))
        if item.important or not only_important
    )


def unknown_key_hint(key: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown key: the nearest known one, or nothing."""
    # Compared without case, since wrong case is the commonest mistake.
    by_lower_case = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(key.lower(), by_lower_case, n=1, cutoff=0.8)
    return f" (did you mean {by_lower_case[nearest[0]]}?)" if nearest else ""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one field; the reference page is generated from these."""

    attribute: str
    key: str
    doc: str
    important: bool
    live: bool
    default: Any
    value_type: type
    optional: bool
    minimum: int
    maximum: int
    limit: str = ""

    def parse(self, text: str) -> Any:
        """The value that `text` stands for; nothing stands for "not set" where that exists."""
        if self.optional and not text:
            return None
        if self.value_type is str:
            if len(text) > MAX_TEXT_LENGTH or _CONTROL.search(text):
                raise self._error(
                    repr(text)[1:-1],
                    f"at most {MAX_TEXT_LENGTH} characters, none of which is a control character",
                )
            return text
        word = text.strip()
        if self.value_type is bool:
            if word.lower() not in ("true", "false"):
                raise self._error(text, "true or false")
            return word.lower() == "true"
        if issubclass(self.value_type, Enum):
            if word not in self.value_type.__members__:
                raise self._error(text, " or ".join(self.value_type.__members__))
            return self.value_type[word]
        expected = f"a whole number from {self.minimum} to {self.maximum}"
        # int() alone would take "1_000", more digits than can be converted and other scripts.
        digits = word[1:] if word[:1] in ("+", "-") else word
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise self._error(text, expected)
        number = int(word)
        if not self.minimum <= number <= self.maximum:
            raise self._error(text, expected)
        return number

    def format(self, value: Any) -> str:
        """The text that `parse` reads as `value`."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return value.name if isinstance(value, Enum) else str(value)

    def _error(self, text: str, expected: str) -> ConfigError:
        shown = text if len(text) <= 100 else f"{text[:100]}..."
        return ConfigError(f"{self.key}={shown}: expected {expected}")


def settings_of(config_class: type) -> Iterator[Setting]:
    """The settings of a configuration class, in the order in which they are declared."""
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        value_type = hints[field.name]
        optional = isinstance(value_type, types.UnionType)
        if optional:
            (value_type,) = (kind for kind in value_type.__args__ if kind is not types.NoneType)
        yield Setting(
            attribute=field.name,
            key=field.metadata["key"],
            doc=field.metadata["doc"],
            important=field.metadata["important"],
            live=field.metadata["live"],
            default=field.default,
            value_type=value_type,
            optional=optional,
            minimum=field.metadata["minimum"],
            maximum=field.metadata["maximum"],
            limit=field.metadata["limit"],
        )
