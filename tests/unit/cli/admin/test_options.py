from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from pyromq.cli.admin.options import (
    complete_topic,
    flag_value_option,
    target_options,
    text_option,
    topic_option,
)
from pyromq.testing import Cluster


@click.command()
@target_options()
@topic_option("Name a topic.")
@text_option("-k", "--key", "key", "Name a key.")
@flag_value_option("-o", "--order", "order", "Order.", default="false")
def command(**values: object) -> None:
    click.echo(sorted(values.items()))


def run(line: str) -> Result:
    return CliRunner().invoke(command, line.split(" "))


def test_values_are_trimmed() -> None:
    result = CliRunner().invoke(command, ["-b", " a:1 ", "-t", " x ", "-k", " y", "-o", " TRUE "])
    assert result.output == (
        "[('broker', 'a:1'), ('cluster', None), ('key', 'y'), ('order', True), ('topic', 'x')]\n"
    )


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("false", False), ("yes", False)])
def test_flags_as_java_reads_them(text: str, expected: bool) -> None:
    assert f"('order', {expected})" in run(f"-c x -t t -o {text}").output


@pytest.mark.parametrize("line", ["-t x", "-t x -b a:1 -c y", "-c y -t x -b a:1"])
def test_one_target_is_needed(line: str) -> None:
    result = run(line)
    assert result.exit_code == 2
    assert "either -b/--brokerAddr or -c/--clusterName" in result.output


def test_a_topic_must_not_be_blank() -> None:
    result = CliRunner().invoke(command, ["-b", "a:1", "-t", " "])
    assert result.exit_code == 2
    assert "must not be empty" in result.output


def test_topics_are_completed(rocketmq: Cluster) -> None:
    rocketmq.create_topic("orders-1")
    rocketmq.create_topic("orders-2")
    context, parameter = click.Context(command), command.params[2]
    context.params["namesrv"] = rocketmq.namesrv
    assert complete_topic(context, parameter, "orders") == ["orders-1", "orders-2"]
    context.params["namesrv"] = "127.0.0.1:1"
    assert complete_topic(context, parameter, "orders") == []
