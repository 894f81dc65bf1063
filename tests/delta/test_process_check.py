"""Delta in a forked process is refused before the process claims the store."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from statestore import OperatorKey, StateStore
from statestore.errors import InvalidArgumentError, StateStoreError

ROWS = [{"k": f"k{number}", "v": number} for number in range(20)]


def take_snapshot(place: str) -> int:
    store = StateStore.open(place)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("uid", "state", ROWS, key="k", max_parallelism=4)
    return checkpoint.id


def rekey(place: str) -> int | None:
    return StateStore.open(place).maintenance.rekey("uid", max_parallelism=8).new_checkpoint_id


def purge(place: str) -> int:
    return len(
        StateStore.open(place).maintenance.forget(OperatorKey("uid", "k3"), search=False).replaced
    )


def report(command: str, place: str, answers: Queue[str]) -> None:
    try:
        answers.put(f"checkpoint {globals()[command](place)}")
    except StateStoreError as error:
        answers.put(f"{type(error).__name__}: {error}")
    except BaseException as error:  # the error that the caller could not catch
        answers.put(f"panic: {error!r}")
        raise


def answer_of_child(method: str, command: str, place: str) -> str:
    context = multiprocessing.get_context(method)
    answers: Queue[str] = context.Queue()
    child = context.Process(target=report, args=(command, place, answers))  # type: ignore[attr-defined]
    child.start()
    found = answers.get(timeout=120)
    child.join()
    return found


@pytest.mark.parametrize("command", ["take_snapshot", "rekey", "purge"])
def test_a_forked_child_of_a_delta_writer_claims_nothing(tmp_path: Path, command: str) -> None:
    place = str(tmp_path / "store")
    store = StateStore.open(place, table_format="delta")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("uid", "state", ROWS, key="k", max_parallelism=4)
    found = answer_of_child("fork", command, place)
    assert found.startswith(InvalidArgumentError.__name__)
    assert "spawn" in found
    assert place in found
    with store.snapshot(parallelism=2) as checkpoint:  # the parent still has its claim
        checkpoint.write_keyed("uid", "state", ROWS, key="k", max_parallelism=4)
    assert checkpoint.id == 2


FORKED_BEFORE_USE = """
import os
from statestore.delta.delta_rs import refuse_forked
child = os.fork()
if child == 0:
    refuse_forked("here")
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_was_forked_before_delta_was_used_is_not_refused() -> None:
    subprocess.run([sys.executable, "-c", FORKED_BEFORE_USE], check=True)


@pytest.mark.long
@pytest.mark.slow
def test_a_spawned_child_writes(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    store = StateStore.open(place, table_format="delta")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("uid", "state", ROWS, key="k", max_parallelism=4)
    assert answer_of_child("spawn", "take_snapshot", place) == "checkpoint 2"


@pytest.mark.slow
def test_a_forked_child_writes_parquet(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    delta = StateStore.open(str(tmp_path / "delta"), table_format="delta")
    for store in (delta, StateStore.open(place, table_format="parquet")):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("uid", "state", ROWS, key="k", max_parallelism=4)
    assert answer_of_child("fork", "take_snapshot", place) == "checkpoint 2"
    assert answer_of_child("fork", "rekey", place) == "checkpoint 3"
