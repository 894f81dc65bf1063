"""A snapshot for a batch of a job: a batch that is run again is written once (I4)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from statestore import CheckpointWriter, OperatorKey, StateStore
from statestore.cli.main import cli
from statestore.errors import CommitConflictError, InvalidArgumentError, MalformedManifestError
from statestore.format.manifest import BatchRecord
from statestore.format.manifest_json import manifest_to_json
from statestore.format.names import manifest_path
from tests.support.stores import keys_in, opened
from tests.support.writers import claims, stored_files


def keep(store: StateStore, key: str, **options: Any) -> CheckpointWriter:
    """Write one row as a change, for the batch in ``options``."""
    with store.snapshot(parallelism=1, **options) as checkpoint:
        checkpoint.write_changes("u", "s", pa.table({"k": [key], "v": [1]}), key="k")
        checkpoint.carry_rest()
    return checkpoint


def test_a_batch_that_is_run_again_writes_nothing(url: str) -> None:
    """It writes neither a file nor a claim; the calls return the stored entries."""
    first = keep(opened(url), "a", batch=("job", 0))
    before = stored_files(url), claims(url)
    again = keep(opened(url), "other", batch=("job", 0))
    assert (first.already_committed, again.already_committed) == (False, True)
    assert again.manifest == first.manifest
    assert (stored_files(url), claims(url)) == before
    assert not keep(opened(url), "b", batch=("job", 1)).already_committed
    assert keys_in(opened(url)) == {"a", "b"}


COMMANDS: dict[str, Callable[[StateStore], Any]] = {
    "edit": lambda store: store.maintenance.edit("u", "s", put=[{"k": "e", "v": 1}]),
    "compact": lambda store: store.maintenance.compact(everything=True),
    "rekey": lambda store: store.maintenance.rekey("u", max_parallelism=256),
    "purge": lambda store: store.maintenance.forget(OperatorKey("u", "gone"), search=False),
    "another job": lambda store: keep(store, "o", batch=("another", 9)),
    "no batch": lambda store: keep(store, "n"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_between_two_batches_loses_no_batch(url: str, command: str) -> None:
    """The command takes the next id, and carries the number of the last batch."""
    keep(opened(url), "gone", batch=("job", 6))
    keep(opened(url), "a", batch=("job", 7))
    COMMANDS[command](opened(url))
    assert keep(opened(url), "lost", batch=("job", 7)).already_committed
    assert not keep(opened(url), "b", batch=("job", 8)).already_committed
    assert {"a", "b"} <= keys_in(opened(url))
    assert "lost" not in keys_in(opened(url))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_id_that_a_command_has_used_is_refused(url: str, command: str) -> None:
    """A job that derives checkpoint ids from its batches gets an error, and loses no batch."""
    keep(opened(url), "gone", checkpoint_id=1)
    keep(opened(url), "a", checkpoint_id=2)
    COMMANDS[command](opened(url))
    taken = opened(url).checkpoints()[-1]
    with pytest.raises(
        CommitConflictError, match=rf"checkpoint {taken} .*batch=\('name of the job"
    ):
        keep(opened(url), "b", checkpoint_id=taken)
    assert not keep(opened(url), "b", checkpoint_id=taken + 1).already_committed
    assert "b" in keys_in(opened(url))


def test_the_batch_of_an_expired_checkpoint_counts_as_committed(url: str) -> None:
    """The newest checkpoint builds on it, and therefore contains it."""
    keep(opened(url), "a", batch=("job", 1))
    for number in range(3):
        keep(opened(url), "b", batch=("another", number))
    store = opened(url)
    store.maintenance.expire(retain=1)
    again = keep(opened(url), "x", batch=("job", 1))
    assert again.already_committed
    assert again.id == store.checkpoints()[-1]


def test_an_earlier_batch_is_refused(url: str) -> None:
    """It is unknown whether the state contains it."""
    for number in (3, 5):
        keep(opened(url), "a", batch=("job", number))
    before = stored_files(url), claims(url)
    for number in (0, 3, 4):
        with pytest.raises(
            CommitConflictError, match=rf"batch {number} of job 'job' is an earlier batch"
        ):
            keep(opened(url), "b", batch=("job", number))
    assert (stored_files(url), claims(url)) == before


@pytest.mark.parametrize("how", ["copy", "fork"])
def test_a_job_continues_in_a_copy(url: str, tmp_path: Path, how: str) -> None:
    keep(opened(url), "a", batch=("job", 7))
    there = str(tmp_path / "there")
    source = opened(url)
    if how == "copy":
        source.maintenance.copy("latest", there)
    else:
        source.maintenance.copy("latest", there, linked=True)
    again = keep(opened(there), "x", batch=("job", 7))
    assert again.already_committed
    assert again.manifest.batches == {"job": BatchRecord(7, again.id)}
    assert not keep(opened(there), "b", batch=("job", 8)).already_committed


def test_an_overtaken_attempt_is_already_committed(url: str) -> None:
    """Two attempts of one batch overlap: one commits, and the retry of the other detects it."""
    keep(opened(url), "a", batch=("job", 0))
    store = opened(url)
    slow = store.snapshot(parallelism=1, batch=("job", 1))
    keep(store, "b", batch=("job", 1))
    with pytest.raises(CommitConflictError), slow:
        slow.write_changes("u", "s", pa.table({"k": ["b"], "v": [2]}), key="k")
    assert keep(store, "b", batch=("job", 1)).already_committed


def test_a_damaged_newest_checkpoint_does_not_cause_a_second_write(url: str) -> None:
    for number in range(2):
        keep(opened(url), "a", batch=("job", number))
    Path(url, manifest_path(2)).write_bytes(b"{")
    with pytest.raises(MalformedManifestError):
        keep(opened(url), "a", batch=("job", 1))


def test_a_checkpoint_of_an_older_release_counts_unless_a_command_made_it(url: str) -> None:
    """Its manifest has no batches, but names the command that made it."""
    keep(opened(url), "a", checkpoint_id=1)
    opened(url).maintenance.edit("u", "s", put=[{"k": "e", "v": 1}])
    for number in (1, 2):
        manifest = replace(opened(url).checkpoint(number).manifest, batches=None)
        Path(url, manifest_path(number)).write_bytes(manifest_to_json(manifest))
    assert keep(opened(url), "x", checkpoint_id=1).already_committed
    with pytest.raises(CommitConflictError, match="the command 'edit'"):
        keep(opened(url), "x", checkpoint_id=2)


@pytest.mark.parametrize(
    "batch",
    [
        *("job", 7, ("job",), ("job", 1, 2), (1, 1), ("", 1), ("a\nb", 1)),
        *(("job", number) for number in (-1, True, 1.0, 2**63)),
    ],
)
def test_an_invalid_batch_is_refused(url: str, batch: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="batch"):
        opened(url).snapshot(parallelism=1, batch=batch)
    assert not Path(url).exists() or not claims(url)


def test_show_names_the_last_batch(url: str) -> None:
    keep(opened(url), "a", batch=("job", 7))
    opened(url).maintenance.edit("u", "s", put=[{"k": "e", "v": 1}])
    words = ["--store", url, "show", "latest"]
    text = CliRunner().invoke(cli, words).stdout
    assert re.search(r"last batch +7 of job 'job', checkpoint 1", text)
    document = json.loads(CliRunner().invoke(cli, [*words, "--output", "json"]).stdout)
    assert document["batches"] == {"job": {"number": 7, "checkpoint_id": 1}}
