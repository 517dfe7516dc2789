from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from pyromq.cli.admin.command import _CLIENT_COMMANDS, ALIASES, COMMANDS, admin
from pyromq.cli.main import main
from tests.unit.cli.admin import mqadmin_commands

#: The areas whose commands exist.
AREAS = {"acl", "broker", "cluster", "export", "namesrv", "producer", "stats", "topic"}
OF_MQADMIN = [each for each in mqadmin_commands.COMMANDS if each.area in AREAS or _CLIENT_COMMANDS]
#: Without them mqadmin does nothing and says so.
NEEDED = {("updateTopicPerm", "-p")}
CONTEXT = click.Context(admin, parent=click.Context(main, **main.context_settings))


def options_of(name: str) -> dict[str, click.Option]:
    """The options of a command, by each of their names."""
    command = admin.get_command(CONTEXT, name)
    assert command is not None
    return {
        option: parameter
        for parameter in command.get_params(CONTEXT)
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }


@pytest.mark.parametrize("command", OF_MQADMIN, ids=lambda command: command.name)
def test_every_option_of_mqadmin_exists(command: mqadmin_commands.Command) -> None:
    found = options_of(command.name)
    assert {"-n", "--namesrvAddr", "-h", "--help", "--json"} <= set(found)
    assert found["-n"] is found["--namesrvAddr"]
    for option in command.options:
        assert found[option.short] is found[option.long]
        assert found[option.short].is_flag is not option.takes_value
        is_required = option.is_required or (command.name, option.short) in NEEDED
        assert found[option.short].required is is_required, option


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_name_and_a_help_text(name: str) -> None:
    command = admin.get_command(CONTEXT, name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").rstrip().endswith((".", "json", "}")) or "Examples" in (
        command.help or ""
    )
    for option in options_of(name).values():
        assert option.help
        assert option.help.endswith("."), option.opts


def test_names_are_found_as_mqadmin_finds_them() -> None:
    assert admin.get_command(CONTEXT, "TOPICLIST") is admin.get_command(CONTEXT, "topicList")
    assert admin.get_command(CONTEXT, "deleteAccessConfig") is admin.get_command(
        CONTEXT, "deleteAclConfig"
    )
    assert all(name in COMMANDS for name in ALIASES.values() if name in COMMANDS)
    assert admin.get_command(CONTEXT, "nothing") is None


def test_help() -> None:
    runner = CliRunner()
    listed = runner.invoke(main, ["admin", "--help"])
    assert all(name in listed.output for name in COMMANDS)
    assert runner.invoke(main, ["admin", "help"]).output == listed.output
    of_command = runner.invoke(main, ["admin", "help", "updatetopic"])
    assert "--readQueueNums" in of_command.output
    unknown = runner.invoke(main, ["admin", "help", "updateTopics"])
    assert unknown.exit_code == 2
    assert "updateTopic" in unknown.output


def test_a_mistyped_command_gets_a_suggestion() -> None:
    result = CliRunner().invoke(main, ["admin", "topiclists"])
    assert result.exit_code == 2
    assert "Did you mean 'topicList'" in result.output
