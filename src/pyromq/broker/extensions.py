"""Hooks and stores that a broker loads by name: `brokerHooks` and `messageStorePlugIn`.

A name is `module:attribute`, or the name of an entry point of an installed package, in the group
`pyromq.hooks` or `pyromq.stores`. RocketMQ names Java classes, which are refused like any name that
cannot be loaded: a broker that starts without its guard would be open.

Only the broker's file sets these keys, because setting them means running code. Used by
`broker.broker` at its start.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

from pyromq.broker.hooks import Hooks
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.extension import BitMapOf

#: Builds the store: settings, the address in records, a callback for arrivals, filters.
StoreFactory = Callable[
    [MessageStoreConfig, bytes, Callable[[ConsumeQueue], None], BitMapOf | None], MessageStore
]

HOOKS_GROUP: Final = "pyromq.hooks"
STORES_GROUP: Final = "pyromq.stores"
#: The methods of each kind of hook, by the field of `Hooks`.
_METHODS: Final = {
    "send": ("before_send", "after_send"),
    "consume": ("before_consume", "after_consume"),
    "rpc": ("before_request", "after_response"),
}


class ExtensionError(Exception):
    """A name cannot be loaded; the message says which, why, and what is expected."""


def load_hooks(names: str) -> Hooks:
    """Return the hooks of `brokerHooks`: names separated by commas. Raises ExtensionError.

    A name stands for a hook object, a class or function that is called without arguments and
    returns one, or a `Hooks`. An object may be a hook of several kinds.
    """
    found: dict[str, list[Any]] = {kind: [] for kind in _METHODS}
    for name in _split(names):
        loaded = _made(_load("brokerHooks", name, HOOKS_GROUP), name)
        if isinstance(loaded, Hooks):
            for kind in found:
                found[kind] += getattr(loaded, kind)
            continue
        for kind in _kinds_of(loaded, name):
            found[kind].append(loaded)
    return Hooks(**found)


def load_store_factory(name: str) -> StoreFactory:
    """Return the factory that `messageStorePlugIn` names. Raises ExtensionError."""
    names = _split(name)
    if len(names) != 1:
        raise ExtensionError(
            f"messageStorePlugIn={name}: expected one name; a store that extends another one "
            "imports it"
        )
    factory: StoreFactory = _load("messageStorePlugIn", names[0], STORES_GROUP)
    if not callable(factory):
        raise ExtensionError(
            f"messageStorePlugIn={name}: expected a subclass of MessageStore or a function that "
            f"returns a store, not a {type(factory).__name__}"
        )
    return factory


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _load(key: str, name: str, group: str) -> Any:
    module, colon, attribute = name.partition(":")
    try:
        if not colon:
            return _entry_point(key, name, group).load()
        loaded: Any = importlib.import_module(module)
        for part in attribute.split("."):
            loaded = getattr(loaded, part)
        return loaded
    except ExtensionError:
        raise
    except Exception as error:  # the imported code may raise anything
        raise ExtensionError(
            f"{key}={name}: loading failed: {type(error).__name__}: {error}; check the name, and "
            "that the module is installed or on PYTHONPATH"
        ) from error


def _entry_point(key: str, name: str, group: str) -> Any:
    known = {point.name: point for point in entry_points(group=group)}
    if name not in known:
        installed = ", ".join(sorted(known)) or "none"
        raise ExtensionError(
            f"{key}={name}: expected module:attribute, or an entry point of the group {group} "
            f"(installed: {installed}); Java classes cannot be loaded"
        )
    return known[name]


def _made(loaded: Any, name: str) -> Any:
    """Return the hook: the object itself, or what a class or function makes."""
    if isinstance(loaded, Hooks) or not (inspect.isclass(loaded) or inspect.isroutine(loaded)):
        return loaded
    try:
        return loaded()
    except Exception as error:
        raise ExtensionError(
            f"brokerHooks={name}: calling it without arguments failed: "
            f"{type(error).__name__}: {error}"
        ) from error


def _kinds_of(hook: Any, name: str) -> list[str]:
    kinds = []
    for kind, methods in _METHODS.items():
        missing = [method for method in methods if not callable(getattr(hook, method, None))]
        if not missing:
            kinds.append(kind)
        elif len(missing) < len(methods):
            raise ExtensionError(f"brokerHooks={name}: a {kind} hook also needs {missing[0]}")
    if not kinds:
        raise ExtensionError(
            f"brokerHooks={name}: {type(hook).__name__} has no methods of a hook; see docs/hooks.md"
        )
    return kinds
