"""Accounts, what they may do, and the rules of a server: all accounts and white lists together.

Resources are topics. A group is the resource `%RETRY%<group>`, as in RocketMQ, so that its retry
topic and the group itself share one permission. Names are exact, with their namespace; there are no
wildcards.

Rules never change: `reload` replaces them as a whole. `Rules.version` tells caches apart.

Pure. Used on the loop by `validation`.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyromq.acl.addresses import BLANK, Expression, parse_address
from pyromq.base.memo import Memo
from pyromq.protocol.names import RETRY_TOPIC_PREFIX

#: Characters that an access key and a secret key need at least.
KEY_MIN_LENGTH: Final = 7


class Permission(enum.IntFlag):
    """What an account may do with a resource; the bits are RocketMQ's."""

    DENY = 1
    #: Needed, never owned: either of the next two.
    ANY = 2
    PUB = 4
    SUB = 8


_WORDS: Final = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}
PERMISSION_WORDS: Final = tuple(_WORDS)


def parse_permission(word: str) -> Permission | None:
    """Return the permission of a word in a file, or None if it is not one."""
    return _WORDS.get(word.strip())


def group_resource(group: str) -> str:
    """Return the resource of a consumer group."""
    return RETRY_TOPIC_PREFIX + group


def shown_resource(resource: str) -> str:
    """Return a resource as RocketMQ names it in a refusal."""
    if resource.startswith(RETRY_TOPIC_PREFIX):
        return f"group:{resource.removeprefix(RETRY_TOPIC_PREFIX)}"
    return f"topic:{resource}"


@dataclass(frozen=True, slots=True)
class Account:
    """One account. Its secret is in no text that Python makes of it."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    #: Whether a server signs as this account: it may register, and copy the tables of a master.
    is_peer: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    #: Permissions by resource; a group is listed as its retry topic.
    resources: Mapping[str, Permission] = field(default_factory=dict)
    #: A caller from there passes without a signature.
    white: Expression = BLANK
    #: The start of an HMAC-SHA1 with the secret key, and of its outer hash.
    keyed: tuple[hashlib._Hash, hashlib._Hash] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keyed", _keyed(self.secret_key))

    @property
    def is_unrestricted(self) -> bool:
        """Whether the account may use every resource: an administrator without permissions."""
        return self.is_admin and not self.resources

    def allows(self, resource: str, needed: Permission) -> bool:
        """Return whether the account may use a resource."""
        if self.is_unrestricted:
            return True
        owned = self.resources.get(resource)
        if owned is None:
            is_group = resource.startswith(RETRY_TOPIC_PREFIX)
            owned = self.default_group if is_group else self.default_topic
        return allows(owned, needed)


def allows(owned: Permission, needed: Permission) -> bool:
    """Return whether what is owned covers what is needed; DENY refuses always."""
    # As numbers: operators of an enum cost a microsecond.
    bits, wanted = int(owned), int(needed)
    if bits & _DENY:
        return False
    return bool(bits & (_PUB_OR_SUB if wanted & _ANY else wanted))


_DENY, _ANY = int(Permission.DENY), int(Permission.ANY)
_PUB_OR_SUB: Final = int(Permission.PUB | Permission.SUB)


@dataclass(frozen=True, slots=True)
class FileVersion:
    """How often administrators changed a file over the wire, and when last."""

    counter: int = 0
    timestamp: int = 0


_versions = itertools.count(1)


class Rules:
    """Everything that the files of a server say."""

    __slots__ = ("_is_white", "accounts", "files", "global_white", "version", "warnings")

    def __init__(
        self,
        accounts: Mapping[str, Account] | None = None,
        global_white: tuple[Expression, ...] = (),
        files: Mapping[str, FileVersion] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.accounts = dict(accounts or {})
        self.global_white = global_white
        #: Versions by the full path of each file that has content.
        self.files = dict(files or {})
        self.warnings = warnings
        #: Unique in this process.
        self.version = next(_versions)
        self._is_white = Memo(self._match)

    def is_white(self, host: str) -> bool:
        """Return whether a caller from `host` passes without any check."""
        return bool(self.global_white) and self._is_white[host]

    def _match(self, host: str) -> bool:
        address = parse_address(host)
        return any(expression.matches(address) for expression in self.global_white)


_BLOCK_SIZE: Final = 64
_INNER, _OUTER = (
    bytes(each ^ 0x36 for each in range(256)),
    bytes(each ^ 0x5C for each in range(256)),
)


def padded_keys(secret_key: str) -> tuple[bytes, bytes]:
    """Return the first blocks of the inner and of the outer hash of an HMAC-SHA1 (RFC 2104)."""
    key = secret_key.encode()
    if len(key) > _BLOCK_SIZE:
        key = hashlib.sha1(key, usedforsecurity=False).digest()
    key = key.ljust(_BLOCK_SIZE, b"\0")
    return key.translate(_INNER), key.translate(_OUTER)


def _keyed(secret_key: str) -> tuple[hashlib._Hash, hashlib._Hash]:
    """Start an HMAC-SHA1 once per account: a copy costs less than `hmac.digest`.

    RocketMQ's clients sign with HMAC-SHA1, which is not affected by collisions of SHA-1.
    """
    inner, outer = padded_keys(secret_key)
    return (
        hashlib.sha1(inner, usedforsecurity=False),
        hashlib.sha1(outer, usedforsecurity=False),
    )
