"""A broker's properties file, the certificates and the files of access control that it names.

Called by `command`, on the main thread.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyromq.acl.files import AclFileError
from pyromq.acl.settings import files_of
from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerProperties, load_broker_properties
from pyromq.cli.doctor.finding import Finding, fail, ok, warn
from pyromq.cli.running import mode_warnings, read_properties
from pyromq.tls.contexts import server_context
from pyromq.tls.errors import TlsError

_DAY: Final = 24 * 3600
#: A certificate should be replaced that many days before it expires.
_DAYS_LEFT: Final = 21
_UNTIL: Final = "valid until "


def load_settings_file(path: Path) -> BrokerProperties:
    """Load a broker's file, as the broker does. Raises click.ClickException or ConfigError."""
    return load_broker_properties(read_properties(str(path)))


def bad_settings(path: Path, error: Exception) -> Finding:
    """Return the finding for a file that cannot be loaded."""
    text = str(error)
    return fail(
        "settings",
        text if str(path) in text else f"{path}: {text}",
        "the broker does not start with this file",
        "correct it; docs/configuration.md lists all settings",
    )


def examine_settings(
    path: Path, loaded: BrokerProperties, now: float | None = None
) -> Iterator[Finding]:
    """Examine a file that the broker would start with."""
    warnings = [*loaded.warnings, *mode_warnings(str(path), [type(loaded.broker)])]
    for warning in warnings:
        yield warn("settings", f"{path}: {warning}", "the broker logs this at each start", "see it")
    if not warnings:
        yield ok("settings", f"{path} is valid")
    if loaded.broker.serves_tls and not loaded.broker.tls_test_mode_enable:
        yield _certificate(loaded, time.time() if now is None else now)
    if loaded.broker.acl_enable:
        yield from _access_files(loaded)


def _certificate(loaded: BrokerProperties, now: float) -> Finding:
    check = "certificate"
    why = "clients that verify it refuse the connection"
    advice = "replace the files; the broker reads them again by itself"
    try:
        context = server_context(loaded.broker)
    except TlsError as error:
        return fail(check, str(error), "the broker does not start", "correct the tls.* settings")
    if not context.is_sound:
        return fail(check, context.note, why, advice)
    try:
        expires = ssl.cert_time_to_seconds(context.note.partition(_UNTIL)[2])
    except ValueError:
        return ok(check, context.note)
    days = (expires - now) / _DAY
    if days < 0:
        return fail(check, f"{context.note}: it has expired", why, advice)
    if days < _DAYS_LEFT:
        return warn(check, f"{context.note}: {days:.0f} days are left", why, advice)
    return ok(check, context.note)


def _access_files(loaded: BrokerProperties) -> Iterator[Finding]:
    config = loaded.broker
    try:
        rules = files_of(config, strict=config.is_acl_strict).load()
    except (AclFileError, ConfigError, OSError) as error:
        yield fail(
            "access control", str(error), "the broker does not start", "run pyromq acl check"
        )
        return
    for warning in rules.warnings:
        yield warn(
            "access control",
            warning,
            "a secret that others read, or a rule that does not do what it says",
            "correct the file; the broker reads it again by itself",
        )
    if not rules.warnings:
        yield ok("access control", f"{len(rules.accounts)} accounts")
