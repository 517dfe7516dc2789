from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pyromq.cli.client_options import Cluster, Identity, client_options, identity_options
from pyromq.cli.consume import consume
from pyromq.cli.send import send
from pyromq.protocol.wire.acl import ACCESS_KEY, SIGNATURE
from pyromq.protocol.wire.codes import RequestCode
from tests.support.certificates import Certificates
from tests.unit.client.fake_cluster import cluster_in_a_thread


def invoke(*arguments: str, environment: dict[str, str] | None = None) -> tuple[Result, Cluster]:
    given: list[Cluster] = []

    @click.command()
    @client_options
    def command(cluster: Cluster) -> None:
        given.append(cluster)

    result = CliRunner().invoke(command, arguments, env=environment)
    return result, given[0] if given else Cluster("", {})


def test_defaults() -> None:
    _, cluster = invoke()
    assert cluster.namesrv == "127.0.0.1:9876"
    assert not any(cluster.options.values())


def test_options_come_from_the_command_line_and_the_environment() -> None:
    _, cluster = invoke(
        "--namesrv", "a:1;b:2", "--namespace", "tenant", "--access-key", "me", "--tls",
        environment={"ROCKETMQ_SECRET_KEY": "secret", "ROCKETMQ_SECURITY_TOKEN": "token"},
    )  # fmt: skip
    assert cluster.namesrv == "a:1;b:2"
    assert cluster.options == {
        "namespace": "tenant",
        "access_key": "me",
        "secret_key": "secret",
        "security_token": "token",
        "tls": True,
    }


def test_files_for_tls_are_passed_on(tmp_path: Path) -> None:
    certs = Certificates(tmp_path)
    files = ("--tls-cert", certs["client.pem"], "--tls-key", certs["client.key"])
    _, cluster = invoke("--tls-ca", certs["ca.pem"], *files)
    assert cluster.options["tls"] == certs.tls()


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_an_unreadable_authority_is_one_error_line(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    result, _ = invoke("--tls-ca", str(file))
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: tls.ca={file}: ")


def test_send_and_consume_sign_and_stay_in_their_namespace() -> None:
    with cluster_in_a_thread({"tenant%t": {"b0": 1}}) as cluster:
        common = ["--namesrv", cluster.namesrv, "--namespace", "tenant"]
        common += ["--access-key", "me", "--secret-key", "secret"]
        sent = CliRunner().invoke(send, ["t", "hello", *common])
        assert sent.exit_code == 0, sent.output
        printed = CliRunner().invoke(
            consume, ["t", "--from", "first", "--count", "1", "--json", *common]
        )
        assert '"topic":"t"' in printed.output
        assert '"body":"hello"' in printed.output
        (broker,) = cluster.brokers
        assert list(broker.queues) == [("tenant%t", 0)]
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE):
            fields = broker.seen(code)[0].ext_fields
            assert fields[ACCESS_KEY] == "me"
            assert SIGNATURE in fields


def test_half_a_key_is_refused() -> None:
    result = CliRunner().invoke(send, ["t", "x", "--access-key", "me"])
    assert result.exit_code == 1
    assert "must be given together" in result.output


def test_an_identity_needs_both_keys() -> None:
    @click.command()
    @identity_options
    def command(identity: Identity) -> None:
        assert "hush" not in repr(identity)
        click.echo(identity.access_key)

    result = CliRunner().invoke(command, ["--access-key", "me"])
    assert (result.exit_code, "must be given together" in result.output) == (2, True)
    environment = {"ROCKETMQ_ACCESS_KEY": "me", "ROCKETMQ_SECRET_KEY": "hush"}
    assert CliRunner().invoke(command, env=environment).output == "me\n"
