"""The output of ``bisect`` as text and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statestore import StateStore
from statestore.errors import CheckpointNotFoundError
from tests.support.stores import opened

Run = Callable[..., Result]

BELOW = ("bisect", "--state", "u/s", "--where", "v < 0")


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """Five checkpoints; from the fourth one on, and in the first, a value is below zero."""
    store = opened(tmp_path / "store")
    for number, value in enumerate((-1, 2, 3, -4, -5), 1):
        with store.snapshot(parallelism=1) as checkpoint:
            rows = [{"k": "a", "v": value}, {"k": "b", "v": number}]
            checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=8)
            offsets = [{"topic": "t", "partition": 0, "offset": 10 * number}]
            checkpoint.write_split("source", "offsets", [offsets])
    return store


def test_the_text_names_the_checkpoint_the_writer_the_rows_and_the_offsets(
    run: Run, store: StateStore
) -> None:
    done = run(*BELOW, "--store", store.url)
    assert (done.exit_code, done.stderr) == (0, "")
    text = done.stdout
    assert text.startswith("checkpoint 4 is the first one in which\na row of state s of ")
    assert "halving is right only if the predicate stays true" in text
    assert re.search(
        r"^  first +checkpoint 4, taken .* by job, writer \S+ \(statestore ", text, re.M
    )
    assert re.search(r"^  before +checkpoint 3, taken ", text, re.M)
    assert "2 changed, 0 added, 0 removed" in text
    assert text.index('~ {"k": "a"}  v: 3 → -4') < text.index('~ {"k": "b"}  v: 3 → 4')
    assert re.search(r"^t +0 +30 +40 +10$", text, re.M)


def test_all_shows_each_change_of_the_answer(run: Run, store: StateStore) -> None:
    text = run(*BELOW, "--all", "--store", store.url).stdout
    assert "checkpoint 1 is the first one" in text
    assert "halving" not in text
    assert re.findall(r"from checkpoint (\d) on: (.+)", text) == [
        ("1", "satisfied"),
        ("2", "not satisfied"),
        ("4", "satisfied"),
    ]


def test_the_json_has_the_same(run: Run, store: StateStore) -> None:
    found = json.loads(run(*BELOW, "--store", store.url, "--output", "json").stdout)
    assert (found["before"]["checkpoint_id"], found["first"]["checkpoint_id"]) == (3, 4)
    assert found["first"]["writer"]["generation"] == 1
    assert found["changes"]["examples"][0]["b"] == {"k": "a", "v": -4}
    assert found["replay"] == [
        {
            "operator": "source",
            "state": "offsets",
            "topic": "t",
            "partition": 0,
            "start": 30,
            "stop": 40,
        }
    ]
    assert (found["is_exhaustive"], found["transitions"]) == (False, [])


def test_it_says_what_it_cannot_know(run: Run, store: StateStore) -> None:
    store.maintenance.savepoint("second", checkpoint=2)
    store.maintenance.expire(retain=1)
    text = run("bisect", "--state", "u/s", "--where", "v < -4", "--store", store.url).stdout
    assert "2 checkpoints that are not kept; the change can be in one of them" in text
    text = run("bisect", "--state", "u/s", "--where", "v > 0", "--store", store.url).stdout
    assert "no older checkpoint with a known answer is kept" in text
    text = run("bisect", "--state", "u/s", "--where", "v > 99", "--store", store.url).stdout
    assert text.startswith("no row of state s of operator u")
    assert text.splitlines()[0].endswith("in checkpoint 5")
    text = run(
        *("bisect", "--state", "u/s", "--where", "v > 99", "--all", "--store", store.url)
    ).stdout
    assert text.splitlines()[0].endswith("in any checkpoint with a known answer")
    where = "CAST(k AS INT) > 0"
    text = run("bisect", "--state", "u/s", "--where", where, "--store", store.url).stdout
    assert text.startswith("it is unknown whether a row of state s of operator u")


def test_an_error_quotes_the_place(run: Run, store: StateStore) -> None:
    done = run("bisect", "--state", "u/s", "--where", "w < 0", "--store", store.url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert 'Referenced column "w" not found' in done.stderr
    assert "^" in done.stderr
    done = run(*BELOW[:1], "7", *BELOW[1:], "--store", store.url)
    assert done.exit_code == CheckpointNotFoundError.exit_code
