"""Check that a synchronous client passes each call on to the asynchronous one unchanged.

Synchronous clients type the client they wrap as `Any` (see `pyromq.client.sync`), so mypy cannot
see a wrong name, a forgotten argument or a different default. `check_delegation` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from pyromq.client.sync import SyncClient


class Recorder:
    """Replace an asynchronous client: record each call by parameter name."""

    def __init__(self, client_class: type) -> None:
        self._class = client_class
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._class, name)

        def record(*args: Any, **kwargs: Any) -> None:
            bound = inspect.signature(method).bind(self, *args, **kwargs)
            bound.apply_defaults()
            self.calls.append((name, {k: v for k, v in bound.arguments.items() if k != "self"}))

        async def record_on_loop(*args: Any, **kwargs: Any) -> None:
            record(*args, **kwargs)

        return record_on_loop if inspect.iscoroutinefunction(method) else record


def check_delegation(
    sync_class: type[SyncClient], client_class: type, *, own: Collection[str] = ()
) -> None:
    """Call every public method of `sync_class`, except its `own`, and check the call that arrives.

    Names, kinds and defaults of parameters and the annotated results must be equal as well.
    """
    names = [
        name
        for name, member in inspect.getmembers(sync_class, inspect.isfunction)
        if not name.startswith("_") and name not in {"start", "close", *own}
    ]
    assert names
    for name in names:
        ours = inspect.signature(getattr(sync_class, name))
        theirs = inspect.signature(getattr(client_class, name))
        assert _shape(ours) == _shape(theirs), name
        assert ours.return_annotation == theirs.return_annotation, name

        recorder = Recorder(client_class)
        client = sync_class(lambda: recorder)  # noqa: B023 - called at once
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        expected: dict[str, Any] = {}
        for parameter in list(ours.parameters.values())[1:]:
            # Listeners are wrapped; any other argument is passed on unchanged.
            value = None if parameter.name.startswith("on_") else object()
            expected[parameter.name] = value
            if parameter.kind is parameter.VAR_POSITIONAL:
                args.append(value)
                expected[parameter.name] = (value,)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        getattr(client, name)(*args, **kwargs)
        client.close()
        assert recorder.calls == [(name, expected)]


def _shape(signature: inspect.Signature) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]
