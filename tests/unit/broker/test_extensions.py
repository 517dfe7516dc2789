from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.extensions import ExtensionError, load_hooks, load_store_factory
from pyromq.broker.hooks import Hooks
from pyromq.store.message_store import MessageStore
from tests.support.brokers import local_broker, small_store

MODULE = """
from pyromq.broker.hooks import Hooks
from pyromq.store.message_store import MessageStore


class Everything:
    seen = []

    def before_send(self, context): self.seen.append("before_send")
    def after_send(self, context): self.seen.append("after_send")
    def before_consume(self, context): ...
    def after_consume(self, context): ...
    def before_request(self, remote_address, request): ...
    def after_response(self, remote_address, request, response): ...


class Guard:
    def before_request(self, remote_address, request): ...
    def after_response(self, remote_address, request, response): ...


class Half:
    def before_send(self, context): ...


class Broken:
    def __init__(self): raise RuntimeError("no licence")


class Store(MessageStore):
    pass


def make(): return Guard()


guard = Guard()
all_of_them = Hooks(rpc=[guard, Guard()])
number = 7


class inner:
    hook = guard
"""


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module and an installed distribution with entry points."""
    (tmp_path / "my_plugins.py").write_text(MODULE)
    (tmp_path / "my_broken_plugins.py").write_text("import no_such_module_anywhere")
    metadata = tmp_path / "my_plugins-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugins\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[pyromq.hooks]\nguard = my_plugins:Guard\n[pyromq.stores]\nmine = my_plugins:Store\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_plugins", None)


def kinds(hooks: Hooks) -> list[int]:
    return [len(hooks.send), len(hooks.consume), len(hooks.rpc)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("", [0, 0, 0]),
        ("my_plugins:Everything", [1, 1, 1]),
        ("my_plugins:guard", [0, 0, 1]),
        ("my_plugins:make", [0, 0, 1]),
        ("my_plugins:inner.hook", [0, 0, 1]),
        ("my_plugins:all_of_them", [0, 0, 2]),
        ("guard", [0, 0, 1]),
        (" guard , my_plugins:Everything,my_plugins:all_of_them ", [1, 1, 4]),
    ],
)
def test_hooks_by_name(names: str, expected: list[int]) -> None:
    assert kinds(load_hooks(names)) == expected


def test_hooks_keep_their_order() -> None:
    hooks = load_hooks("my_plugins:Everything,guard")
    assert [type(hook).__name__ for hook in hooks.rpc] == ["Everything", "Guard"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org.example.Hook", r"expected module:attribute, or an entry point of the group pyromq"),
        ("missing", r"\(installed: guard\); Java classes cannot be loaded"),
        ("no_such_module:Hook", "loading failed: ModuleNotFoundError: No module named"),
        ("my_broken_plugins:Hook", "No module named 'no_such_module_anywhere'"),
        ("my_plugins:Missing", "loading failed: AttributeError"),
        ("my_plugins:", "loading failed"),
        (":x", "loading failed"),
        ("my_plugins:Half", "a send hook also needs after_send"),
        ("my_plugins:number", "int has no methods of a hook; see docs/hooks.md"),
        ("my_plugins:Broken", "calling it without arguments failed: RuntimeError: no licence"),
    ],
)
def test_bad_hooks_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ExtensionError, match=f"^brokerHooks={name}: .*{reason}"):
        load_hooks(name)


@pytest.mark.parametrize("name", ["my_plugins:Store", "mine"])
def test_a_store_by_name(name: str) -> None:
    factory = load_store_factory(name)
    assert isinstance(factory, type)
    assert issubclass(factory, MessageStore)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org.example.Store", "Java classes cannot be loaded"),
        ("mine,my_plugins:Store", "expected one name"),
        (",", "expected one name"),
        ("my_plugins:number", "not a int"),
    ],
)
def test_bad_stores_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ExtensionError, match=f"^messageStorePlugIn={name}: .*{reason}"):
        load_store_factory(name)


def test_the_entry_points_are_found() -> None:
    assert "guard" in importlib.metadata.entry_points(group="pyromq.hooks").names


async def test_a_broker_loads_what_its_settings_name(tmp_path: Path) -> None:
    config = local_broker(
        broker_hooks="my_plugins:Everything", message_store_plug_in="my_plugins:Store"
    )
    broker = Broker(config, small_store(tmp_path / "store"))
    await broker.start()
    try:
        assert type(broker.store).__name__ == "Store"
        assert broker._hooks is not None
        assert kinds(broker._hooks) == [1, 1, 1]
    finally:
        await broker.stop()


@pytest.mark.parametrize("settings", [{"broker_hooks": "x"}, {"message_store_plug_in": "x"}])
async def test_a_broker_does_not_start_without_them(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    broker = Broker(local_broker(**settings), small_store(tmp_path / "store"))
    with pytest.raises(ExtensionError, match="=x: expected module:attribute"):
        await broker.start()
    await broker.stop()
    assert not (tmp_path / "store" / "commitlog").exists()


async def test_a_raft_group_has_its_own_store(tmp_path: Path) -> None:
    store = small_store(
        tmp_path / "store",
        enable_dleger_commit_log=True,
        dleger_group="g",
        dleger_peers="n0-127.0.0.1:40911",
        dleger_self_id="n0",
    )
    broker = Broker(local_broker(message_store_plug_in="mine"), store)
    with pytest.raises(ExtensionError, match="a raft group has a store of its own"):
        await broker.start()
    await broker.stop()
