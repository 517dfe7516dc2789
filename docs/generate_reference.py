"""Writes reference/client.md, the reference of clients and of the testing package, from the code.

    .venv/bin/python docs/generate_reference.py

Signatures, docstrings and the `#:` comments of fields are those of the source. Every public
name (`__all__`) must stand in one section here, in the order in which a reader meets it. A test
fails when the page is not what `render` makes of the code.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyromq

PAGE = Path(__file__).with_name("reference") / "client.md"
SOURCE = Path(pyromq.__file__).parents[1]

_INTRODUCTION = """\
# Reference: clients and testing

<!-- Made by docs/generate_reference.py from the code: do not edit. -->

Everything that `pyromq.client` and `pyromq.testing` offer. [The guide](../client.md) says how it
fits together, and the programs in `examples` show it at work. Times are in seconds, unless a name
says otherwise.
"""

#: Longer signatures have a line for each parameter.
_LINE = 88


class Section(NamedTuple):
    """A part of the page: names of a package, and the modules whose docstrings introduce them."""

    title: str
    modules: tuple[str, ...]
    names: tuple[str, ...]
    package: str = "pyromq.client"


SECTIONS = (
    Section(
        "Producers",
        ("producer.producer",),
        ("Producer", "ProducerOptions", "QueueSelector", "Batching"),
    ),
    Section(
        "Messages and results",
        (),
        ("Message", "SendResult", "SendStatus", "MessageQueue", "ReceivedMessage"),
    ),
    Section(
        "Transactions",
        ("producer.transaction",),
        ("TransactionProducer", "HalfMessage", "TransactionState", "TransactionResult"),
    ),
    Section("Request and reply", ("producer.request_reply",), ("reply_to",)),
    Section(
        "Push consumers",
        ("consumer.push.consumer", "consumer.push.handling"),
        (
            "PushConsumer",
            "PushOptions",
            "Order",
            "MessageModel",
            "Handler",
            "ConsumeResult",
            "Retry",
        ),
    ),
    Section(
        "Lite pull consumers",
        ("consumer.lite_pull.consumer",),
        ("LitePullConsumer", "LitePullOptions", "AssignmentListener"),
    ),
    Section("Single pulls", ("consumer.pull",), ("PullConsumer", "PullResult", "PullStatus")),
    Section(
        "What is consumed, and from where",
        ("consumer.subscription", "consumer.start_from"),
        ("Subscription", "StartFrom"),
    ),
    Section(
        "Who consumes which queue",
        ("consumer.rebalance",),
        (
            "Strategy",
            "allocate_averagely",
            "allocate_averagely_by_circle",
            "AllocateByConfig",
            "AllocateByMachineRoom",
            "AllocateMachineRoomNearby",
            "AllocateConsistentHash",
        ),
    ),
    Section("Every client", ("client", "options"), ("Client", "ClientOptions")),
    Section(
        "Synchronous clients",
        ("sync",),
        (
            "SyncProducer",
            "SyncTransactionProducer",
            "SyncPushConsumer",
            "SyncLitePullConsumer",
            "SyncPullConsumer",
        ),
    ),
    Section(
        "Errors",
        ("errors",),
        (
            "RocketMQError",
            "ClientError",
            "IllegalMessageError",
            "OptionError",
            "ClientStateError",
            "NameServerError",
            "TopicNotFoundError",
            "BrokerError",
            "AnswerError",
            "RequestTimeoutError",
            "UnreadableBodyError",
            "RemotingError",
            "RemotingConnectError",
            "RemotingTimeoutError",
            "RemotingClosedError",
        ),
    ),
    Section(
        "Hooks",
        ("hooks",),
        (
            "SendHook",
            "Sending",
            "ConsumeHook",
            "Consuming",
            "TransactionHook",
            "EndingTransaction",
        ),
    ),
    Section("Testing", ("cluster", "plugin"), ("Cluster", "ClusterBroker"), "pyromq.testing"),
)


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")


def render() -> str:
    """The page's text. Raises ValueError when a public name stands nowhere, or twice."""
    _check_complete()
    lines = [_INTRODUCTION]
    lines += [f"- [{section.title}](#{_anchor(section.title)})\n" for section in SECTIONS]
    lines.insert(1, "\n")
    for section in SECTIONS:
        lines += _section(section)
    return "".join(lines)


def _check_complete() -> None:
    for package in {section.package for section in SECTIONS}:
        names = [
            name for section in SECTIONS if section.package == package for name in section.names
        ]
        public = importlib.import_module(package).__all__
        if sorted(names) != sorted(public):
            difference = sorted(set(names) ^ set(public))
            raise ValueError(f"docs/generate_reference.py: {package}: {difference}, or one twice")


def _section(section: Section) -> Iterator[str]:
    yield f"\n## {section.title}\n"
    for name in section.modules:
        documented = ast.get_docstring(_module(f"{section.package}.{name}").tree)
        yield f"\n{documented}\n"
    places = _places(section.package)
    for name in section.names:
        yield from _entry(name, _module(places[name]))


class Module(NamedTuple):
    """A module's source."""

    tree: ast.Module
    lines: list[str]


@cache
def _module(name: str) -> Module:
    path = SOURCE.joinpath(*name.split(".")).with_suffix(".py")
    if not path.exists():
        path = path.with_suffix("") / "__init__.py"
    text = path.read_text(encoding="utf-8")
    return Module(ast.parse(text), text.splitlines())


def _places(package: str) -> dict[str, str]:
    """The module that each name of a package comes from."""
    places: dict[str, str] = {}
    for node in ast.walk(_module(package).tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pyromq."):
            assert node.module is not None
            for alias in node.names:
                places[alias.name] = _origin(node.module, alias.name)
    return places


def _origin(module: str, name: str) -> str:
    """Where a name is defined that `module` may only pass on."""
    for node in _module(module).tree.body:
        if (
            isinstance(node, ast.ImportFrom)
            and node.module is not None
            and any(alias.name == name for alias in node.names)
        ):
            return _origin(node.module, name)
    return module


def _entry(name: str, module: Module) -> Iterator[str]:
    yield f"\n### {name}\n"
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from _class(node, module)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield _code(_signature(node))
            yield f"\n{ast.get_docstring(node)}\n"
            return
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            yield f"\n{_comment(node, module)}\n"
            yield _code("\n".join(module.lines[node.lineno - 1 : node.end_lineno]))
            return
    raise ValueError(f"docs/generate_reference.py: {name} is no class, function or alias")


def _class(node: ast.ClassDef, module: Module) -> Iterator[str]:
    bases = [ast.unparse(base) for base in node.bases]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    methods = [item for item in node.body if isinstance(item, functions)]
    maker = next((item for item in methods if item.name == "__init__"), None)
    heading = f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")
    if maker is not None:
        heading += f"\n\n{_signature(maker, node.name)}"
        for word in set(re.findall(r"\b[A-Z_]{4,}\b", heading)):
            heading = heading.replace(word, _shown(word, module))
    yield _code(heading)
    yield f"\n{ast.get_docstring(node)}\n"
    yield from _fields(node, module)
    for item in methods:
        if item.name.startswith("_") and item.name not in ("__next__", "__anext__"):
            continue
        decorators = {ast.unparse(decorator) for decorator in item.decorator_list}
        prefix = "".join(f"@{word}\n" for word in ("classmethod", "property") if word in decorators)
        yield f"\n#### {node.name}.{item.name}\n"
        yield _code(prefix + _signature(item))
        documented = ast.get_docstring(item)
        if documented:
            yield f"\n{documented}\n"


def _fields(node: ast.ClassDef, module: Module) -> Iterator[str]:
    rows = []
    defaults = _defaults_of_options(node.name, module)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            name, kind = item.target.id, ast.unparse(item.annotation)
            default = defaults.get(name, "") if item.value is None else ast.unparse(item.value)
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            name, kind, default = item.targets[0].id, "", ast.unparse(item.value)
        else:
            continue
        if not name.startswith("_"):
            rows.append((name, kind, _shown(default, module), _comment(item, module)))
    if not rows:
        return
    yield "\n| name | type | default | |\n| --- | --- | --- | --- |\n"
    for name, kind, default, comment in rows:
        yield f"| `{name}` | {_cell(kind)} | {_cell(default)} | {comment.replace('|', _BAR)} |\n"


_BAR = chr(92) + "|"


def _cell(code: str) -> str:
    return f"`{code.replace('|', _BAR)}`" if code else ""


def _defaults_of_options(name: str, module: Module) -> dict[str, str]:
    """Keyword arguments (`XOptions`) have their defaults in what is made of them (`XSettings`)."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and name.endswith("Options"):
            if node.name in (name.replace("Options", "Settings"), "Settings"):
                return {
                    ast.unparse(item.target): ast.unparse(item.value)
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and item.value is not None
                }
            if node.name == name.removesuffix("Options"):
                return _defaults_of_maker(node)
    return {}


def _defaults_of_maker(node: ast.ClassDef) -> dict[str, str]:
    maker = next(i for i in node.body if isinstance(i, ast.FunctionDef) and i.name == "__init__")
    return {
        parameter.arg: ast.unparse(default)
        for parameter, default in zip(maker.args.kwonlyargs, maker.args.kw_defaults, strict=True)
        if default is not None
    }


def _shown(code: str, module: Module) -> str:
    """A default, with constants of its module as their values."""
    for node in module.tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == code
            and isinstance(node.value, ast.Constant)
        ):
            return ast.unparse(node.value)
    return code.replace("field(default_factory=dict)", "{}")


def _comment(node: ast.stmt, module: Module) -> str:
    """The lines `#: ...` above a statement."""
    words: list[str] = []
    for line in reversed(module.lines[: node.lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        words.insert(0, line.strip().removeprefix("#:").strip())
    return " ".join(words)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, class_name: str | None = None) -> str:
    """How a function is called: without `self` and `cls`."""
    keyword = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    name = node.name if class_name is None else class_name
    parameters = list(_parameters(node.args))
    if any("_Arguments" in text for text in parameters):
        parameters = ["..."]  # those of the class
    returns = "" if node.returns is None or class_name else f" -> {ast.unparse(node.returns)}"
    start = name if class_name else keyword + name
    whole = f"{start}({', '.join(parameters)}){returns}"
    if len(whole) <= _LINE:
        return whole
    return f"{start}(\n" + "".join(f"    {text},\n" for text in parameters) + f"){returns}"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    plain = arguments.posonlyargs + arguments.args
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    for parameter, default in zip(plain, [*defaults, *arguments.defaults], strict=True):
        if parameter.arg not in ("self", "cls"):
            yield _parameter(parameter, default)
    if arguments.vararg is not None:
        yield f"*{_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(parameter, default)
    if arguments.kwarg is not None:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    text = parameter.arg
    if parameter.annotation is not None:
        text += f": {ast.unparse(parameter.annotation)}"
    if default is not None:
        text += f" = {ast.unparse(default)}"
    return text


def _code(text: str) -> str:
    return f"\n```python\n{text}\n```\n"


def _anchor(title: str) -> str:
    return title.lower().replace(",", "").replace(" ", "-")


if __name__ == "__main__":
    main()
