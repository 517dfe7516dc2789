from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pyromq.cli.tls import tls
from pyromq.tls import certificates
from pyromq.tls.errors import TlsError


def test_certificates_are_written_and_named(tmp_path: Path) -> None:
    directory = tmp_path / "certs"
    arguments = ["make-test-certs", str(directory), "--host", "broker-1", "--days", "3"]
    result = CliRunner().invoke(tls, arguments)
    assert result.exit_code == 0, result.output
    for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key"):
        assert str(directory / name) in result.output
        assert (directory / name).exists()
    assert f"tls.config.file={directory / 'tls.properties'}" in result.output
    certificate = (directory / "server.pem").read_bytes()

    again = CliRunner().invoke(tls, arguments)
    assert again.exit_code == 1
    assert "ca.key exists: choose another directory, or use --force" in again.output
    assert (directory / "server.pem").read_bytes() == certificate
    assert CliRunner().invoke(tls, [*arguments, "--force"]).exit_code == 0
    assert (directory / "server.pem").read_bytes() != certificate


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(tls, ["make-test-certs", str(tmp_path / "file" / "certs")])
    assert result.exit_code == 1
    assert "cannot write" in result.output


def test_a_missing_package_is_one_error_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise TlsError("install it")

    monkeypatch.setattr(certificates, "_new_key", missing)
    result = CliRunner().invoke(tls, ["make-test-certs", str(tmp_path / "certs")])
    assert result.exit_code == 1
    assert result.output == "Error: install it\n"
