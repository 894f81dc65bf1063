"""A word means the same in all commands, in their JSON, and in Python."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import click

from statestore.cli.main import cli
from tests.surface.record import surface
from tests.syntax import ROOT

SEVERAL = {
    "--key-column": {"COLUMN", "COLUMN[=TYPE]"},  # a new state is hashed by types
    # What chooses it: the caller, stored bytes, or a comparison.
    "--parallelism": {"N", "N|auto|SIZE", "N|auto|SIZE|N,N,…"},
    "--state": {"OPERATOR/STATE", "OPERATOR[/STATE]"},  # only one state, or an operator's states
    "--allow": {"lost=NAME", "[OLD=]URL"},  # a verdict, or a place
    "--to": {"DIR", "FILE"},  # the command's result, outside of a store
    "--until": {"SIZE|SPAN", "SOURCE=OFFSET"},  # a forecast's goal; the end of a rehearsal
    "--where": {"COLUMN=VALUE", "SQL"},  # rows to change, by equality; rows to find
}
"""Options whose values have several forms; all others have one in all commands."""

OF_FLINK = ("flink show", "vertices.", "matching.", "Node", "operator_id", "SavepointHints")
"""Places of Flink's uid, which is not the name of an operator without one."""
ITS_OPERATORS = ("ImportedOperator", "ShownOperator", "Manifest")


def commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    if not isinstance(command, click.Group):
        yield command
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, click.Context(found, parent=context, info_name=name))


def every_command() -> list[click.Command]:
    return [*commands(cli, click.Context(cli))]


def test_the_value_of_an_option_is_the_same_in_all_commands() -> None:
    found: dict[str, set[str | None]] = defaultdict(set)
    for command in every_command():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                is_flag = parameter.is_flag
                found[parameter.opts[0]].add("a flag" if is_flag else parameter.metavar)
    assert {option: forms for option, forms in found.items() if len(forms) > 1} == SEVERAL


def test_a_checkpoint_is_the_last_argument() -> None:
    """Only a query and a check have an option for it, because an argument may be missing."""
    with_checkpoint = 0
    for command in every_command():
        names = [
            one.human_readable_name for one in command.params if isinstance(one, click.Argument)
        ]
        options = {option for parameter in command.params for option in parameter.opts}
        *places, last = names or [""]
        is_version = last in ("[CHECKPOINT]", "[BATCH]")
        assert is_version or len(names) < 2 or names in (["A", "[B]"], *TWO_PLACES), command.name
        assert len(places) < 2 or places in TWO_PLACES, command.name
        assert not {"KEY", "STORE", "[STORE]", "OPERATOR", "STATE"} & {*names}, command.name
        assert ("--checkpoint" in options) == (command.name in ("query", "check"))
        with_checkpoint += last == "[CHECKPOINT]"
    assert with_checkpoint > 15


TWO_PLACES = (["JOB", "NEW"], ["SAVEPOINT", "NEW"], ["LOCATION", "NEW"], ["[OLD]", "NEW"])
"""A command reads the first place, and writes or checks the second one."""


def test_the_page_for_users_of_other_systems_names_existing_commands_and_options() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    table = page.partition("## Commands")[2].partition("## ")[0]
    named = [
        command.split()
        for line in table.splitlines()
        if line.startswith("| `")
        for command in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]
    assert len(named) > 20
    known = {command.name: command for command in every_command()}
    for name, *words in named:
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_operator_and_state_have_one_name_in_python_and_json() -> None:
    """``uid`` is only Flink's."""
    others = {"uid", "uids", "operator_uid", "state_name", "to", "which"}
    found = {
        f"{item} {part}"
        for item, parts in surface().items()
        for part in parts
        if part.rpartition(".")[2].lstrip("-") in others and not item.startswith("statestore ")
    }
    known = (*OF_FLINK, *ITS_OPERATORS)
    assert {text for text in found if not any(word in text for word in known)} == set()
