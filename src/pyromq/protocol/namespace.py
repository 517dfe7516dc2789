"""Add and remove namespaces, which give each tenant of a cluster its own topic and group names.

A name in a namespace is `namespace%name`. A retry or dead-letter topic keeps its prefix in front:
`%RETRY%namespace%group`. System names have no namespace. Pure. Clients add the namespace to names
that they send and remove it from names that they receive.
"""

from __future__ import annotations

from typing import Final

from pyromq.protocol.names import (
    DEAD_LETTER_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_system_topic,
)

SEPARATOR: Final = "%"


def with_namespace(namespace: str, name: str) -> str:
    """Return the name that servers use. Idempotent."""
    if not namespace or not name or is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX):
        return name
    prefix, rest = _split(name)
    if rest.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{rest}"


def without_namespace(namespace: str, name: str) -> str:
    """Return the name that the tenant uses; names of other namespaces stay unchanged."""
    prefix, rest = _split(name)
    if not namespace or not rest.startswith(namespace + SEPARATOR):
        return name
    return prefix + rest[len(namespace) + 1 :]


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
