from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pyromq.tls.client import Tls
from pyromq.tls.command_options import tls_options
from tests.support.certificates import Certificates


def invoke(*arguments: str, **environment: str) -> tuple[Result, bool | Tls | None]:
    given: list[bool | Tls] = []

    @click.command()
    @tls_options
    def command(tls: bool | Tls) -> None:
        given.append(tls)

    result = CliRunner().invoke(command, arguments, env=environment)
    return result, given[0] if given else None


def test_plain_by_default_and_verified_with_tls() -> None:
    assert invoke()[1] is False
    assert invoke("--tls")[1] is True


def test_files_turn_tls_on(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    _, tls = invoke(
        *("--tls-ca", certs["ca.pem"], "--tls-cert", certs["client.pem"]),
        *("--tls-key", certs["client.key"], "--tls-server-name", "rocketmq"),
        ROCKETMQ_TLS_KEY_PASSWORD="hush",
    )
    assert tls == certs.tls(server_name="rocketmq", key_password="hush")


def test_anything_is_accepted_if_asked_for() -> None:
    assert invoke("--tls-insecure")[1] == Tls(verify=False)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("--tls-cert", "x"), 2, "must be given together"),
        (("--tls-insecure", "--tls-ca", "x"), 2, "contradicts"),
        (("--tls-ca", "/nothing"), 1, "tls.ca=/nothing: No such file"),
    ],
)
def test_mistakes_are_one_error_line(arguments: tuple[str, ...], code: int, reason: str) -> None:
    result, _ = invoke(*arguments)
    assert result.exit_code == code
    assert reason in result.output.splitlines()[-1]
