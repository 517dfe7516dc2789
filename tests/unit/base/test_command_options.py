from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pyromq.base.command_options import (
    DEFAULT_NAMESRV,
    access_key_option,
    add_options,
    namesrv_option,
    secret_key_option,
    security_token_option,
    store_config_option,
)


def parse(*arguments: str, environment: dict[str, str] | None = None) -> dict[str, object]:
    parsed: dict[str, object] = {}

    @click.command()
    @add_options(
        namesrv_option,
        access_key_option,
        secret_key_option,
        security_token_option,
        store_config_option,
    )
    def command(**values: object) -> None:
        parsed.update(values)

    result = CliRunner().invoke(command, arguments, env=environment)
    assert result.exit_code == 0, result.output
    return parsed


def test_defaults() -> None:
    assert parse() == {
        "namesrv": DEFAULT_NAMESRV,
        "access_key": "",
        "secret_key": "",
        "security_token": "",
        "config_file": None,
    }


@pytest.mark.parametrize("spelling", ["--namesrv", "--nameserver"])
def test_both_spellings_of_the_nameserver_option(spelling: str) -> None:
    assert parse(spelling, "a:1;b:2")["namesrv"] == "a:1;b:2"


def test_addresses_and_secrets_come_from_the_environment() -> None:
    parsed = parse(
        environment={
            "NAMESRV_ADDR": "a:1",
            "ROCKETMQ_ACCESS_KEY": "user",
            "ROCKETMQ_SECRET_KEY": "secret",
            "ROCKETMQ_SECURITY_TOKEN": "token",
        }
    )
    assert parsed["namesrv"] == "a:1"
    assert (parsed["access_key"], parsed["secret_key"]) == ("user", "secret")
    assert parsed["security_token"] == "token"


def test_a_store_configuration_is_a_path() -> None:
    assert parse("-c", "broker.conf")["config_file"] == Path("broker.conf")


def test_help_lists_options_in_the_given_order() -> None:
    @click.command()
    @add_options(secret_key_option, namesrv_option)
    def command(**_: object) -> None: ...

    listed = CliRunner().invoke(command, ["--help"]).output
    assert listed.index("--secret-key") < listed.index("--namesrv")
