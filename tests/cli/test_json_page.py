"""docs/JSON.md has the documents of all commands, as their types describe them."""

from __future__ import annotations

import pytest
from click import Context

from docs.json_page import PAGE, documents, page
from statestore.cli.main import cli

WITHOUT_JSON = {"demo"}


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


@pytest.mark.parametrize("name", sorted(set(cli.list_commands(Context(cli))) - WITHOUT_JSON))
def test_every_command_is_on_the_page(name: str) -> None:
    names = {shown.partition(" ")[0] for shown, _ in documents(cli, "")}
    assert name in names


def test_a_command_has_a_document_for_each_of_its_results() -> None:
    shown = {name: [result.__name__ for result in results] for name, results in documents(cli, "")}
    assert shown["get"] == ["FoundRows", "KeyFound", "KeyHistoryResult"]
    assert shown["list"] == ["CheckpointList", "DeletionLog", "FollowedCheckpoint"]
    assert shown["flink repack"] == ["RepackResult"]
