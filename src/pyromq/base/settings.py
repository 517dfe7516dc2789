"""Configuration classes whose fields are RocketMQ's configuration keys.

A component's configuration is a frozen dataclass. Each field is declared with `setting`, which
ties together the key, the default, the legal range and a sentence of documentation. Loading,
printing and the reference page all follow from the fields:

* `load_settings` builds an instance from the table of a `.properties` file. An invalid value
  raises `ConfigError`, which names the key, the value and the expected range. (RocketMQ keeps
  the default silently, which hides typos.)
* `format_settings` prints `key=value` lines in field order, like the `-p` and `-m` options of
  RocketMQ's start scripts.
* `setting_warnings` names every key of a file that has no effect: unknown ones with the nearest
  known key, RocketMQ's unsupported ones with the reason. A setting is unsupported if its field is
  declared `ignored`, or if it has no field and is listed as `Unsupported`.

Pure. Used at start-up by the configuration modules of store, broker and NameServer.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

Config = TypeVar("Config")

#: Maximum characters of a text value: far above any path or list of addresses.
MAX_TEXT_LENGTH = 16 * 1024
#: Control characters: illegal in paths, names and addresses, and able to forge log lines.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: The abbreviations of the home directory, at the start of each path of a comma-separated list.
_HOME = re.compile(r"(?:^|(?<=,))\s*(?:~|\$\{user\.home\}|\$\{HOME\}|\$HOME)(?=/|,|$)")
#: A value that stands for an environment variable.
ENVIRONMENT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: Longest value that a message quotes.
_MAX_QUOTED = 100
#: Shown instead of a secret.
MASK = "******"


class ConfigError(ValueError):
    """An unusable setting; the message names the key, the value and what is expected."""


def setting(  # noqa: PLR0913 - keywords of a declaration
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
    ignored: str = "",
    path: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a dataclass field for RocketMQ's key `key`.

    `important` marks the keys that RocketMQ prints with `-m`; `bits` is 64 for Java's `long`. A
    `live` setting can change at run time: the code reads it on every use. `limit` marks a setting
    that protects the server from its peers, and says what happens to a peer that reaches the
    limit; docs/limits.md is generated from these. `ignored` is the reason why the setting has no
    effect: a value other than the default is accepted with a warning. A `path` may begin with `~`,
    `$HOME`, `${HOME}` or `${user.home}`, the home directory. A `secret` is never printed: neither
    by `Setting.shown`, nor in an error, nor in the `repr` of the configuration.
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
        "ignored": ignored,
        "path": path,
        "secret": secret,
    }
    if default_factory is not None:
        return dataclasses.field(
            default_factory=default_factory, metadata=metadata, repr=not secret
        )
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def load_settings(
    config_class: type[Config], properties: Mapping[str, str], home: str = "~"
) -> tuple[Config, list[str]]:
    """Build a configuration from a properties table.

    Also return the keys that belong to other classes, in table order. Keys that are not in the
    table keep their defaults. `home` is the home directory.
    """
    by_key = {item.key: item for item in settings_of(config_class)}
    values: dict[str, Any] = {}
    others: list[str] = []
    for key, text in properties.items():
        item = by_key.get(key)
        if item is None:
            others.append(key)
        else:
            values[item.attribute] = item.parse(text, home)
    return config_class(**values), others


def with_environment(
    properties: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Replace each value `${NAME}` by the environment variable. Raises ConfigError without it.

    `${HOME}` stays: paths may begin with it.
    """
    resolved = dict(properties)
    for key, text in properties.items():
        found = ENVIRONMENT.fullmatch(text.strip())
        if found is None or found[1] == "HOME":
            continue
        if found[1] not in environment:
            raise ConfigError(
                f"{key}={shown(text)}: expected an environment variable {found[1]}, which is not "
                "set"
            )
        resolved[key] = environment[found[1]]
    return resolved


def format_settings(config: object, *, only_important: bool = False) -> str:
    """Return `key=value` lines, one per setting; an unset value is empty, as in RocketMQ.

    Secrets are masked.
    """
    return "".join(
        f"{item.key}={item.shown(getattr(config, item.attribute))}\n"
        for item in settings_of(type(config))
        if item.important or not only_important
    )


def setting_warnings(
    properties: Mapping[str, str],
    config_classes: Collection[type],
    unsupported: Mapping[str, Unsupported],
) -> list[str]:
    """Return one warning per unknown key, and one per reason why settings have no effect.

    Raise ConfigError for a setting that must not be ignored.
    """
    known = {item.key for kind in config_classes for item in settings_of(kind)} | unsupported.keys()
    return [
        f"unknown setting {shown(key)}{unknown_key_hint(key, known)} is ignored"
        for key in properties
        if key not in known
    ] + ineffective_warnings(properties, config_classes, unsupported)


def unknown_key_hint(key: str, known: Iterable[str]) -> str:
    """Return " (did you mean X?)" with the nearest known key, or an empty string."""
    if len(key) > _MAX_QUOTED:
        return ""
    # Case-insensitive: wrong case is the most common mistake.
    by_lower_case = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(key.lower(), by_lower_case, n=1, cutoff=0.8)
    return f" (did you mean {by_lower_case[nearest[0]]}?)" if nearest else ""


def ineffective_warnings(
    properties: Mapping[str, str],
    config_classes: Iterable[type],
    unsupported: Mapping[str, Unsupported],
) -> list[str]:
    """Return one warning per reason why settings have no effect; skip unknown keys.

    Settings that have RocketMQ's default are not mentioned. Raise ConfigError for a setting that
    must not be ignored.
    """
    table = {**unsupported, **_ignored_fields(config_classes)}
    by_reason: dict[str, list[str]] = {}
    for key, text in properties.items():
        if key in table and table[key].matters(text):
            by_reason.setdefault(table[key].reason, []).append(f"{key}={shown(text)}")
    return [
        f"{', '.join(pairs)} {'has' if len(pairs) == 1 else 'have'} no effect: {reason}"
        for reason, pairs in by_reason.items()
    ]


def _ignored_fields(config_classes: Iterable[type]) -> dict[str, Unsupported]:
    return {
        item.key: Unsupported(item.key, item.format(item.default), item.ignored)
        for config_class in config_classes
        for item in settings_of(config_class)
        if item.ignored
    }


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A setting of RocketMQ that has no effect here.

    `default` is RocketMQ's, None if it depends on the machine. A `refused` setting stops the start
    unless it has its default: ignoring it would be dangerous. A `file_only` setting cannot be
    changed over the wire, since RocketMQ's broker may be started with the same file.
    """

    key: str
    default: str | None
    reason: str
    refused: bool = False
    file_only: bool = False

    def matters(self, text: str) -> bool:
        """Return whether RocketMQ would act differently on `text` than on its default.

        Raise ConfigError if it would and the setting is refused.
        """
        if self.default is not None and text.strip().lower() == self.default.lower():
            return False
        if self.refused:
            raise ConfigError(
                f"{self.key}={shown(text)}: expected {self.default or 'no value'}; {self.reason}"
            )
        return True


def refuse_unsupported(
    properties: Mapping[str, str], unsupported: Mapping[str, Unsupported]
) -> None:
    """Raise ConfigError for the first setting that must not be ignored."""
    for key, text in properties.items():
        if key in unsupported and unsupported[key].refused:
            unsupported[key].matters(text)


def shown(text: str) -> str:
    """Return `text` for a message: escaped, and cut off where it is long."""
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one field; the reference page is generated from these."""

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
    ignored: str = ""
    path: bool = False
    secret: bool = False

    def parse(self, text: str, home: str = "~") -> Any:
        """Return the value of `text`; an empty text unsets an optional setting."""
        if self.optional and not text:
            return None
        if self.secret and text == MASK:  # from a printed configuration
            raise self._error(text, "the secret itself")
        if self.value_type is str:
            if len(text) > MAX_TEXT_LENGTH or _CONTROL.search(text):
                raise self._error(
                    text, f"at most {MAX_TEXT_LENGTH} characters without control characters"
                )
            return _HOME.sub(lambda _: home, text) if self.path else text
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
        # int() alone accepts "1_000", digits of other scripts, and texts too long to convert.
        digits = word[1:] if word[:1] in ("+", "-") else word
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise self._error(text, expected)
        number = int(word)
        if not self.minimum <= number <= self.maximum:
            raise self._error(text, expected)
        return number

    def format(self, value: Any) -> str:
        """Return the text that `parse` turns into `value`."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return value.name if isinstance(value, Enum) else str(value)

    def shown(self, value: Any) -> str:
        """Return the text of `value` for people: that of a secret is masked."""
        return MASK if self.secret and value else self.format(value)

    def _error(self, text: str, expected: str) -> ConfigError:
        text = MASK if self.secret else shown(text)
        return ConfigError(f"{self.key}={text}: expected {expected}")


def settings_of(config_class: type) -> Iterator[Setting]:
    """Yield the settings of a configuration class in declaration order, base classes last."""
    hints = typing.get_type_hints(config_class)
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    names = dict.fromkeys(
        name for kind in config_class.__mro__ for name in vars(kind).get("__annotations__", ())
    )
    for field in [fields[name] for name in names if name in fields]:
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
            ignored=field.metadata["ignored"],
            path=field.metadata["path"],
            secret=field.metadata["secret"],
        )
