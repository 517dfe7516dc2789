"""Check signatures of hot requests in the compiled kernel, if it and OpenSSL are there.

`protocol.kernel.signatures` verifies sends and pulls without Python code per frame, with OpenSSL's
SHA-1. It accepts a request only if the Python code has allowed one like it before: `allow` after
each verdict fills its table, new rules empty it.

Without the kernel, without the library, or if a first result differs from Python's, `load` returns
None, and every request takes the Python code. The verdicts are the same.

On the loop.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from pyromq.acl.rules import Account, Rules, padded_keys
from pyromq.protocol import kernel
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand

logger = logging.getLogger(__name__)

#: OpenSSL 3 and 1.1.
_LIBRARIES: Final = ("libcrypto.so.3", "libcrypto.so.1.1")
#: Fields of the topic and of the group, by code.
_RESOURCES: Final[dict[int, tuple[str, str | None]]] = {
    RequestCode.SEND_MESSAGE: ("topic", None),
    RequestCode.SEND_MESSAGE_V2: ("b", None),
    RequestCode.SEND_BATCH_MESSAGE: ("b", None),
    RequestCode.PULL_MESSAGE: ("topic", "consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
}


class CompiledSignatures:
    """The accounts of a server as the kernel sees them."""

    def __init__(self, module: ModuleType, functions: tuple[int, int], max_age: int) -> None:
        self.signatures: Any = module.Signatures(*functions, max_age)

    def set_rules(self, rules: Rules) -> None:
        """Take other rules, and forget what was allowed."""
        self.signatures.clear()
        for account in rules.accounts.values():
            # A white list depends on the caller: Python decides.
            if account.white.is_blank:
                self.signatures.add(account.access_key.encode(), *padded_keys(account.secret_key))

    def allow(self, code: int, account: Account, fields: Mapping[str, str]) -> None:
        """Note that a request of this account was allowed; the next one like it is too."""
        topic_field, group_field = _RESOURCES[code]
        topic = fields.get(topic_field)
        group = "" if group_field is None else fields.get(group_field)
        # What a send to a retry topic needs depends on more than its topic.
        if topic is not None and group is not None and not topic.startswith("%"):
            key = account.access_key.encode()
            self.signatures.allow(code, key, topic.encode(), group.encode())


def load(max_age: int) -> CompiledSignatures | None:
    """Return the kernel's check of signatures, or None to run the Python code.

    `max_age` is the age of a send in milliseconds that strict mode accepts, 0 for any.
    """
    module, functions = kernel.load("signatures"), _hash_functions()
    if module is None or functions is None:
        return None
    if not _is_right(module, functions):
        logger.error("the compiled check of signatures is wrong: Python checks them")
        return None
    return CompiledSignatures(module, functions, max_age)


def _hash_functions() -> tuple[int, int] | None:
    """Return the addresses of OpenSSL's SHA1_Init and SHA1_Update, or None without them."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            init, update = (
                ctypes.cast(function, ctypes.c_void_p).value
                for function in (library.SHA1_Init, library.SHA1_Update)
            )
        except (OSError, AttributeError):
            continue
        if init and update:
            return init, update
    return None


def _is_right(module: ModuleType, functions: tuple[int, int]) -> bool:
    """Return whether the kernel accepts a good signature and refuses a bad one."""
    checked = CompiledSignatures(module, functions, 0)
    account = Account("self_test_key", "self_test_secret")
    checked.set_rules(Rules({account.access_key: account}))
    for size in (0, 1, 55, 56, 64, 200):
        fields = {"topic": "t" * size, "consumerGroup": "g"}
        acl.sign(fields, b"body", account.access_key, account.secret_key)
        checked.allow(RequestCode.PULL_MESSAGE, account, fields)
        good = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=fields, body=b"body").encode()
        bad = good[:-1] + b"x"
        if checked.signatures.run(good, 0) != len(good) or checked.signatures.run(bad, 0):
            return False
    return True
