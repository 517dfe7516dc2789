"""Instrumenting, undoing it, and the command that does it for a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation

from pyromq.client import Message, Producer, hooks
from pyromq.otel import PyromqInstrumentor
from pyromq.testing import Cluster
from tests.unit.otel.tracing import Recorder

ROOT = Path(__file__).resolve().parents[3]
GROUP = "opentelemetry_instrumentor"

PROGRAM = """
import sys
from pyromq.client import LitePullConsumer, Message, Producer, StartFrom

namesrv, topic = sys.argv[1:]
with Producer.sync(namesrv) as producer:
    producer.send(Message(topic, b"1"))
with LitePullConsumer.sync(namesrv, group="g", start_from=StartFrom.FIRST) as consumer:
    consumer.subscribe(topic)
    while not consumer.poll():
        pass
"""


async def test_uninstrument_restores(cluster: Cluster, topic: str) -> None:
    assert hooks.Hooks().publish == []
    recorder = Recorder()
    instrumentor = PyromqInstrumentor()
    instrumentor.instrument(tracer_provider=recorder.provider, skip_dep_check=True)
    async with Producer(cluster.namesrv) as producer:
        await producer.send(Message(topic, b"1"))
        assert len(recorder.spans()) == 1
        instrumentor.uninstrument()
        await producer.send(Message(topic, b"2"))
    assert hooks.Hooks().publish == []
    async with Producer(cluster.namesrv) as producer:
        assert "send" not in vars(producer)
        await producer.send(Message(topic, b"3"))
    assert len(recorder.spans()) == 1
    first, *others = await cluster.drain_async(topic, 3)
    assert "traceparent" in first.properties
    assert [message.properties for message in others] == [{}, {}]


async def test_a_client_from_before_is_not_traced(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.namesrv) as producer:
        recorder = Recorder()
        PyromqInstrumentor().instrument(tracer_provider=recorder.provider, skip_dep_check=True)
        try:
            await producer.send(Message(topic, b"1"))
        finally:
            PyromqInstrumentor().uninstrument()
    assert recorder.spans() == []


async def test_suppressed(cluster: Cluster, topic: str, recorder: Recorder) -> None:
    async with Producer(cluster.namesrv) as producer:
        with suppress_instrumentation():
            await producer.send(Message(topic, b"1"))
    assert recorder.spans() == []


def test_the_scope_of_the_spans(recorder: Recorder) -> None:
    (hook,) = hooks.Hooks().publish
    span: Any = hook._tracer.start_span("one")  # type: ignore[attr-defined]
    assert span.instrumentation_scope.name == "pyromq"
    assert "opentelemetry.io/schemas" in span.instrumentation_scope.schema_url


def test_the_command_finds_it(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable),
            *("-c", PROGRAM, cluster.namesrv, topic),
        ],
        env={
            **os.environ,
            "OTEL_TRACES_EXPORTER": "console",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(_installed(tmp_path))]),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spans = _objects(done.stdout)
    assert [span["name"] for span in spans] == [f"send {topic}", f"receive {topic}"]
    sent, received = spans
    assert received["links"][0]["context"]["span_id"] == sent["context"]["span_id"]


def _installed(directory: Path) -> Path:
    """A directory with the entry point of this tree, unless the installed package has it."""
    if not entry_points(group=GROUP, name="pyromq"):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        info = directory / "pyromq_of_this_tree-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyromq-of-this-tree\n")
        lines = [f"{key} = {value}" for key, value in project["entry-points"][GROUP].items()]
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "\n".join(lines))
    return directory


def _objects(text: str) -> list[dict[str, Any]]:
    """JSON objects, one after the other."""
    decoder, found = json.JSONDecoder(), []
    while text.strip():
        value, end = decoder.raw_decode(text := text.strip())
        found.append(value)
        text = text[end:]
    return found


def test_a_second_one_is_the_same() -> None:
    assert PyromqInstrumentor() is PyromqInstrumentor()
    with pytest.raises(ValueError, match="not in list"):
        hooks.uninstall(object())  # type: ignore[arg-type]
