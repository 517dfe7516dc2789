from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.base.settings import (
    ConfigError,
    Unsupported,
    format_settings,
    ineffective_warnings,
    load_settings,
    refuse_unsupported,
    setting,
    setting_warnings,
    settings_of,
    shown,
    unknown_key_hint,
    with_environment,
)


class Speed(Enum):
    SLOW = "SLOW"
    FAST = "FAST"


@dataclass(frozen=True, slots=True)
class Example:
    name: str = setting("name", "a", "A name.", important=True)
    address: str | None = setting("addressIP1", None, "An address.")
    port: int = setting("listenPort", 10911, "A port.", minimum=0, maximum=65535)
    size: int = setting("maxSize", 1 << 40, "A size.", bits=64)
    on: bool = setting("traceOn", True, "A switch.")
    speed: Speed = setting("speed", Speed.SLOW, "A choice.")  # noqa: RUF009


def test_loads_typed_values_and_reports_other_keys() -> None:
    config, others = load_settings(
        Example,
        {
            "name": "b ",
            "zebra": "1",
            "addressIP1": "::1",
            "listenPort": " 80 ",
            "maxSize": "-9223372036854775808",
            "traceOn": "FALSE",
            "speed": "FAST",
            "apple": "",
        },
    )
    assert config == Example("b ", "::1", 80, -(1 << 63), False, Speed.FAST)
    assert others == ["zebra", "apple"]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("listenPort", "65536", "from 0 to 65535"),
        ("listenPort", "-1", "from 0 to 65535"),
        ("listenPort", "", "whole number"),
        ("listenPort", "1_0", "whole number"),
        ("listenPort", "٣", "whole number"),
        ("listenPort", "9" * 5000, "whole number"),
        ("listenPort", "10911 # comment", "whole number"),
        ("maxSize", "9223372036854775808", "9223372036854775807"),
        ("traceOn", "yes", "true or false"),
        ("speed", "fast", "SLOW or FAST"),
    ],
)
def test_bad_value_names_key_value_and_expectation(key: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(Example, {key: value})
    message = str(raised.value)
    assert message.startswith(f"{key}={value[:100]}")
    assert expected in message
    assert len(message) < 250


def test_empty_text_unsets_only_what_can_be_unset() -> None:
    config, _ = load_settings(Example, {"name": "", "addressIP1": ""})
    assert (config.name, config.address) == ("", None)


def test_prints_as_java_does() -> None:
    config = Example()
    assert format_settings(config) == (
        "name=a\naddressIP1=\nlistenPort=10911\nmaxSize=1099511627776\ntraceOn=true\nspeed=SLOW\n"
    )
    assert format_settings(config, only_important=True) == "name=a\n"


def test_fields_are_described_for_the_reference_page() -> None:
    described = {item.key: item for item in settings_of(Example)}
    assert list(described) == ["name", "addressIP1", "listenPort", "maxSize", "traceOn", "speed"]
    assert described["addressIP1"].optional
    assert described["addressIP1"].value_type is str
    assert described["listenPort"].doc == "A port."
    assert described["name"].important


def test_hint_finds_the_nearest_key() -> None:
    known = ["listenPort", "maxSize"]
    assert unknown_key_hint("listenport", known) == " (did you mean listenPort?)"
    assert unknown_key_hint("zebra", known) == ""


@given(st.text())
def test_any_text_is_a_value_or_a_config_error(text: str) -> None:
    for item in settings_of(Example):
        try:
            value = item.parse(text)
        except ConfigError:
            continue
        assert isinstance(value, item.value_type) or (item.optional and value is None)
        assert item.parse(item.format(value)) == value


@dataclass(frozen=True, slots=True)
class Derived(Example):
    wait: int = setting("slaveTimeout", 3000, "A time.", ignored="there is no replication")
    home: str = setting("storePath", "/store", "A path.", path=True)
    port: int = setting("listenPort", 1, "Another port.")


TABLE = {
    "useTLS": Unsupported("useTLS", "false", "there is no TLS", refused=True),
    "threads": Unsupported("threads", None, "there are no pools"),
    "workers": Unsupported("workers", "8", "there are no pools"),
    "lock": Unsupported("lock", "true", "there is no lock"),
}


def test_base_classes_come_last_and_overridden_fields_once() -> None:
    described = [item.key for item in settings_of(Derived)]
    assert described == [
        *("slaveTimeout", "storePath", "listenPort"),
        *("name", "addressIP1", "maxSize", "traceOn", "speed"),
    ]


def test_paths_may_begin_with_the_home_directory() -> None:
    for text in ("~/a", "$HOME/a", "${HOME}/a", "${user.home}/a"):
        assert load_settings(Derived, {"storePath": text}, "/root")[0].home == "/root/a"
    assert load_settings(Derived, {"storePath": "/b,~/a,/~"}, "/r")[0].home == "/b,/r/a,/~"
    assert load_settings(Derived, {"name": "~/a"}, "/root")[0].name == "~/a"


def test_settings_without_effect_share_a_warning_per_reason() -> None:
    properties = {
        "threads": "4",
        "slaveTimeout": "1",
        "lock": "False",
        "workers": "9",
        "listenport": "1",
        "listenPort": "1",
        "useTLS": "FALSE",
        "zebra\n": "1",
    }
    effect = [
        "threads=4, workers=9 have no effect: there are no pools",
        "slaveTimeout=1 has no effect: there is no replication",
        "lock=False has no effect: there is no lock",
    ]
    assert ineffective_warnings(properties, [Derived], TABLE) == effect
    assert setting_warnings(properties, [Derived], TABLE) == [
        "unknown setting listenport (did you mean listenPort?) is ignored",
        "unknown setting zebra\\n is ignored",
        *effect,
    ]


def test_defaults_of_settings_without_effect_are_not_mentioned() -> None:
    defaults = {"workers": " 8", "lock": "TRUE", "slaveTimeout": "3000", "useTLS": "false"}
    assert setting_warnings(defaults, [Derived], TABLE) == []


def test_a_setting_that_must_not_be_ignored_is_refused() -> None:
    message = "useTLS=true: expected false; there is no TLS"
    for check in (
        lambda table: setting_warnings(table, [Derived], TABLE),
        lambda table: refuse_unsupported(table, TABLE),
    ):
        with pytest.raises(ConfigError, match=message):
            check({"threads": "1", "useTLS": "true"})
        check({"threads": "1", "useTLS": "false"})


def test_values_are_quoted_in_one_short_line() -> None:
    assert shown("a\nb") == "a\\nb"
    assert shown("ü") == "ü"
    assert shown("x" * 101) == "x" * 100 + "..."


def test_a_secret_is_loaded_but_never_shown() -> None:
    @dataclass(frozen=True, slots=True)
    class WithSecret:
        key: str | None = setting("key", None, "A key.", secret=True)

    config, _ = load_settings(WithSecret, {"key": "hush"})
    (item,) = settings_of(WithSecret)
    assert (config.key, item.format(config.key), item.shown(config.key)) == (
        "hush",
        "hush",
        "******",
    )
    assert format_settings(config) == "key=******\n"
    assert format_settings(WithSecret()) == "key=\n"
    assert "hush" not in repr(config)
    with pytest.raises(ConfigError) as caught:
        load_settings(WithSecret, {"key": "hush\x00"})
    assert "hush" not in str(caught.value)


def test_values_from_the_environment() -> None:
    table = {"a": "${SECRET}", "b": "x${SECRET}", "c": "${HOME}", "d": " ${SECRET} "}
    resolved = with_environment(table, {"SECRET": "s3", "HOME": "/root"})
    assert resolved == {"a": "s3", "b": "x${SECRET}", "c": "${HOME}", "d": "s3"}
    with pytest.raises(ConfigError, match=r"^a=.*environment variable SECRET, which is not set"):
        with_environment(table, {})
