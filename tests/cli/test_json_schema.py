"""docs/statestore.schema.json describes the documents of all commands, as their types do.

The fixture ``run`` validates each document that a test of a command prints.
"""

from __future__ import annotations

import pytest
from click import Context
from jsonschema import Draft202012Validator, ValidationError

from docs.json_schema import FILE, documents, schema, schema_text
from statestore.cli.main import cli
from tests.cli.conftest import Run, validate

WITHOUT_JSON = {"demo"}


def test_the_schema_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == schema_text(), "run `make docs`"


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("name", sorted(set(cli.list_commands(Context(cli))) - WITHOUT_JSON))
def test_every_command_is_in_the_schema(name: str) -> None:
    names = {shown.partition(" ")[0] for shown, _ in documents(cli, "")}
    assert name in names


def test_a_command_has_a_document_for_each_of_its_results() -> None:
    shown = {name: [result.__name__ for result in results] for name, results in documents(cli, "")}
    assert shown["get"] == ["FoundRows", "KeyFound", "KeyHistoryResult"]
    assert shown["list"] == ["CheckpointList", "DeletionLog", "FollowedCheckpoint"]
    assert shown["flink repack"] == ["RepackResult"]


def test_a_document_of_another_command_is_refused(run: Run, fraud: object) -> None:
    shown = run("show", "--store", fraud, "--output", "json").stdout
    validate(["show"], shown)
    with pytest.raises(ValidationError):
        validate(["plan"], shown)
    with pytest.raises(ValidationError):
        validate(["show"], shown.replace('"checkpoint_id": 2', '"checkpoint_id": "2"'))
