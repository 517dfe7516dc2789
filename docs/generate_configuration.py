"""Writes configuration.md, the reference of all settings, from the configuration classes.

    .venv/bin/python docs/generate_configuration.py

Key, default and sentence come from the fields themselves. Whether a setting has an effect is
read from the code: its attribute is used outside the configuration classes, or by one of their
properties that is. A test fails when the page is not what `render` makes of the code.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyromq
from pyromq.base.settings import Setting, settings_of
from pyromq.broker import config as broker_config
from pyromq.broker.config import BrokerConfig
from pyromq.nameserver import config as nameserver_config
from pyromq.nameserver.config import NamesrvConfig
from pyromq.store import config as store_config
from pyromq.store.config import MessageStoreConfig

PAGE = Path(__file__).with_name("configuration.md")
PACKAGE = Path(pyromq.__file__).parent

_INTRODUCTION = """\
# Configuration

<!-- Made by docs/generate_configuration.py from the configuration classes: do not edit. -->

Servers read Java's `.properties` files with RocketMQ 4.9.7's keys, defaults and units. A file of
a running RocketMQ broker or NameServer can be used as it is.

```
pyromq broker -p > broker.properties      # every setting with its value
pyromq broker -m                          # the important ones
pyromq broker -c broker.properties        # start with a file
pyromq namesrv -p > namesrv.properties
pyromq namesrv -c namesrv.properties
pyromq standalone -c broker.properties    # the file is the broker's
```

- A value that does not fit is refused at the start, with its key and what was expected.
- A key that nothing knows is named in a warning, with the nearest known key, and ignored.
- `namesrvAddr` may also come from `-n` or from `NAMESRV_ADDR` in the environment.
- Paths may begin with `~`, `$HOME`, `${HOME}` or `${user.home}`.
- `aclEnable=true` and `enableDLegerCommitLog=true` are refused: to ignore them would leave open
  what its owner believes closed, or write a log in another format than asked for.

*Live* settings can be changed in a running broker (`mqadmin updateBrokerConfig`) and count at
once. Most others can be changed that way, too: they are saved and count from the next start. Names,
addresses, ports, roles, and what says where and how the store lies, are refused: edit the file and
restart the broker. Changes are written to the file that the broker was started with, beside what
else is in it; without a file to `config/broker.properties` in its store, to be named with `-c` at
the next start.

Keys in **bold** are those that `-m` prints. "set at start" stands for a default that depends on
the machine.
"""


class Section(NamedTuple):
    """One configuration class and where it is used."""

    title: str
    config_class: type
    ignored: Iterable[str]
    folders: tuple[str, ...]


SECTIONS = (
    Section(
        "Broker", BrokerConfig, broker_config.KNOWN_WITHOUT_EFFECT, ("broker", "cli", "remoting")
    ),
    Section(
        "Message store",
        MessageStoreConfig,
        store_config.KNOWN_WITHOUT_EFFECT,
        ("store", "broker", "cli"),
    ),
    Section(
        "NameServer",
        NamesrvConfig,
        nameserver_config.KNOWN_WITHOUT_EFFECT,
        ("nameserver", "cli", "remoting"),
    ),
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")


def render() -> str:
    """The page's text."""
    return "".join([_INTRODUCTION, *map(_section, SECTIONS)])


def _section(section: Section) -> str:
    used = _used_attributes(section)
    settings = list(settings_of(section.config_class))
    lines = [
        f"\n## {section.title}\n\n",
        *_table(item for item in settings if item.attribute in used),
    ]
    waiting = [item for item in settings if item.attribute not in used]
    if waiting:
        lines.append(f"\n### {section.title}: read and checked, without effect in this version\n\n")
        lines += _table(waiting)
    lines.append(f"\n### {section.title}: RocketMQ's keys that mean nothing here\n\n")
    lines.append(
        "Accepted without a warning; they tune or switch on what this system does not have: "
    )
    lines.append(", ".join(f"`{key}`" for key in sorted(section.ignored)) + ".\n")
    return "".join(lines)


def _table(settings: Iterable[Setting]) -> Iterator[str]:
    yield "| key | default | what it does |\n| --- | --- | --- |\n"
    for item in settings:
        key = f"**`{item.key}`**" if item.important else f"`{item.key}`"
        doc = item.doc.replace("|", chr(92) + "|") + (" *Live.*" if item.live else "")
        yield f"| {key} | {_default(item)} | {doc} |\n"


def _default(item: Setting) -> str:
    if item.default is dataclasses.MISSING:
        return "set at start"
    text = item.format(item.default)
    return f"`{text}`" if text else "not set"


def _used_attributes(section: Section) -> set[str]:
    """Attributes of the configuration that the code reads, directly or through its properties."""
    used: set[str] = set()
    for folder in section.folders:
        for path in (PACKAGE / folder).rglob("*.py"):
            if path.name != "config.py":
                used |= _reads(ast.parse(path.read_text(encoding="utf-8")))
    module = ast.parse((PACKAGE / f"{section.folders[0]}/config.py").read_text(encoding="utf-8"))
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name in used:
            used |= _reads(node)
    return used


def _reads(tree: ast.AST) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


if __name__ == "__main__":
    main()
