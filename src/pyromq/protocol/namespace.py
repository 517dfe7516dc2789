"""Namespaces: one cluster, several tenants, each with its own names of topics and groups.

A name in a namespace is `namespace%name`, a retry or dead-letter topic keeps its prefix in
front: `%RETRY%namespace%group`. Names of the system belong to no namespace. Pure; clients
put the namespace on when a name leaves them and take it off when one arrives.
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
    """The name as servers know it; one that has the namespace already is left alone."""
    if not namespace or not name or is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX):
        return name
    prefix, rest = _split(name)
    if rest.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{rest}"


def without_namespace(namespace: str, name: str) -> str:
    """The name as the tenant knows it; one of another namespace is left alone."""
    prefix, rest = _split(name)
    if not namespace or not rest.startswith(namespace + SEPARATOR):
        return name
    return prefix + rest[len(namespace) + 1 :]


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
