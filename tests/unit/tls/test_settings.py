from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyromq.base.settings import ConfigError
from pyromq.tls import settings as module
from pyromq.tls.settings import ClientAuth, TlsMode, TlsSettings, with_tls_file

PAIR = {"tls_server_cert_path": "cert", "tls_server_key_path": "key"}


def checked(**values: Any) -> TlsSettings:
    settings = TlsSettings(**values)
    settings.check_tls()
    return settings


def test_tls_is_off_by_default() -> None:
    settings = checked()
    assert (settings.mode, settings.replication_mode) == (TlsMode.DISABLED, TlsMode.DISABLED)
    assert not settings.serves_tls
    assert not settings.connects_with_tls
    assert settings.client_auth is ClientAuth.NONE


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tls_server_mode": "on"}, "tls.server.mode=on: expected disabled, permissive or enf"),
        ({"tls_server_mode": "Enforcing"}, "tls.server.mode=Enforcing: expected"),
        ({"tls_replication_mode": "x"}, "tls.replication.mode=x: expected"),
        ({"tls_server_need_client_auth": "want"}, "tls.server.need.client.auth=want: expected"),
        ({"tls_server_mode": "enforcing"}, "tls.server.certPath=: expected a PEM file"),
        (
            {"tls_server_mode": "permissive", "tls_server_cert_path": "c"},
            "tls.server.keyPath=: expected a PEM file",
        ),
        ({"tls_replication_mode": "permissive"}, "tls.server.certPath=: expected"),
        (
            {
                **PAIR,
                "tls_server_mode": "enforcing",
                "tls_server_need_client_auth": "require",
                "tls_server_auth_client": False,
            },
            "tls.server.authClient=false: expected true with tls.server.need.client.auth=require",
        ),
        (
            {**PAIR, "tls_server_mode": "enforcing", "tls_server_need_client_auth": "optional"},
            "tls.server.trustCertPath=: expected a PEM file with the authorities",
        ),
        ({"tls_client_cert_path": "c"}, "tls.client.keyPath, tls.client.certPath: expected both"),
    ],
)
def test_settings_that_protect_less_than_they_say_are_refused(
    values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        checked(**values)


def test_the_word_for_client_certificates_may_have_any_case() -> None:
    values = {"tls_server_need_client_auth": "REQUIRE", "tls_server_trust_cert_path": "ca"}
    settings = checked(**PAIR, tls_server_mode="enforcing", **values)
    assert settings.client_auth is ClientAuth.REQUIRE
    assert settings.verifies_clients


def test_test_mode_needs_no_files() -> None:
    settings = checked(tls_server_mode="enforcing", tls_test_mode_enable=True)
    assert settings.serves_tls


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"tls_server_mode": "enforcing"}, True),
        ({"tls_server_mode": "permissive"}, False),
        ({"tls_server_mode": "permissive", "use_tls": True}, True),
        ({"tls_enable": True}, True),
        ({"tls_server_mode": "enforcing", "tls_enable": False, "use_tls": True}, False),
    ],
)
def test_own_connections_use_tls_as_in_rocketmq(values: dict[str, Any], expected: bool) -> None:
    assert checked(**PAIR, **values).connects_with_tls is expected


def test_the_replication_port_may_have_another_mode() -> None:
    settings = checked(**PAIR, tls_server_mode="enforcing", tls_replication_mode="disabled")
    assert (settings.mode, settings.replication_mode) == (TlsMode.ENFORCING, TlsMode.DISABLED)


def test_values_make_the_same_settings_again() -> None:
    settings = checked(**PAIR, tls_server_mode="permissive")
    assert TlsSettings(**settings.tls_values()) == settings


def test_passwords_are_not_shown() -> None:
    settings = TlsSettings(tls_server_key_password="hush", tls_client_key_password="hush")
    assert "hush" not in repr(settings)


# The TLS file


def test_the_tls_file_wins(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mode=enforcing\ntls.server.keyPath=/k\n")
    given = {"tls.config.file": str(file), "tls.server.mode": "disabled", "listenPort": "1"}
    assert with_tls_file(given) == {
        **given,
        "tls.server.mode": "enforcing",
        "tls.server.keyPath": "/k",
    }


def test_secrets_of_the_tls_file_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.keyPassword=${KEY_PASSWORD}\ntls.server.keyPath=${HOME}/k\n")
    given = {"tls.config.file": str(file)}
    monkeypatch.delenv("KEY_PASSWORD", raising=False)
    fault = f"^tls.config.file={file}: tls.server.keyPassword=.* variable KEY_PASSWORD, which is"
    with pytest.raises(ConfigError, match=fault):
        with_tls_file(given)
    monkeypatch.setenv("KEY_PASSWORD", "from_outside")
    loaded = with_tls_file(given)
    assert loaded["tls.server.keyPassword"] == "from_outside"
    assert loaded["tls.server.keyPath"] == "${HOME}/k"  # paths may begin with it


def test_a_default_file_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    monkeypatch.setattr(module, "DEFAULT_FILE", missing)
    assert with_tls_file({"tls.config.file": missing}) == {"tls.config.file": missing}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("listenPort=1\n", "listenPort does not belong into a TLS file"),
        ("tls.config.file=x\n", "tls.config.file does not belong"),
        ("tls.server.mode=\\u12\n", "line 1"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "tls.properties"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"^tls.config.file={file}: .*{reason}"):
        with_tls_file({"tls.config.file": str(file)})


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^tls.config.file={tmp_path}: cannot be read: Is a dir"):
        with_tls_file({"tls.config.file": str(tmp_path)})
