"""Whatever a writer of a document accepts, its reader returns equal (I19)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore import StateStore
from statestore.catalog.catalog import Catalog, store_document
from statestore.catalog.fence import Claim, Upgrade, claim_from_json, claim_to_json
from statestore.catalog.holds import (
    Pin,
    Savepoint,
    pin_from_json,
    pin_to_json,
    savepoint_from_json,
    savepoint_to_json,
)
from statestore.errors import InvalidArgumentError, StateStoreError
from statestore.format.left_out import LeftOutState
from statestore.format.manifest_json import manifest_from_json, manifest_to_json
from statestore.jobgraph.graph import Edge, JobGraph, Node
from statestore.keys.groups import RangeAssignment
from statestore.snapshot.subtask_writer import Acknowledgement, AttemptId
from statestore.storage import LocalStorage
from tests.support.key_values import manifests
from tests.support.stores import file_bytes

LONE = "\ud800"
texts = st.text(st.characters(exclude_categories=()), max_size=4) | st.sampled_from(["", LONE])
numbers = st.integers() | st.sampled_from(
    [-(2**63), -(2**63) - 1, 2**63 - 1, 2**63, 2**64, 253_402_300_800_000, 10**10]
)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | texts | st.binary(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.integers(), inner, max_size=3)
        | st.tuples(inner)
        | st.sets(st.integers(), max_size=2)
    ),
    max_leaves=5,
)
left_out = st.builds(
    LeftOutState,
    operator=texts,
    state=st.none() | texts,
    reason=texts,
    command=texts,
    id=st.none() | texts,
    name=st.none() | texts,
    first=st.none() | numbers,
    last=st.none() | numbers,
)
bases: list[dict[str, Any]] = [{}, {"command": "mine"}, {"command": "mine", "checkpoint": 1}]
origins = st.builds(
    lambda base, more: base | more,
    st.sampled_from(bases),
    st.dictionaries(texts, values, max_size=2),
)
claims = st.builds(
    Claim,
    generation=numbers,
    name=texts,
    token=texts,
    release=texts,
    claimed_at_ms=numbers,
    announced_id=numbers,
    writer_version=st.sampled_from([1, 2]),
    upgrade=st.none() | st.builds(Upgrade, generation=numbers, previous_version=numbers),
)


def written(document: Callable[[], bytes]) -> bytes | None:
    """Return a document; None if its writer refuses it."""
    try:
        return document()
    except InvalidArgumentError:
        return None


@given(
    claims,
    st.builds(Savepoint, texts, numbers, numbers),
    st.builds(Pin, texts, numbers, texts, numbers),
)
def test_a_written_claim_and_hold_can_be_read(claim: Claim, savepoint: Savepoint, pin: Pin) -> None:
    if raw := written(lambda: claim_to_json(claim)):
        assert claim_from_json(raw, name="n", generation=claim.generation) == claim
    if raw := written(lambda: savepoint_to_json(savepoint)):
        assert savepoint_from_json(raw, name="n") == savepoint
    if raw := written(lambda: pin_to_json(pin)):
        assert pin_from_json(raw, name="n") == pin


@given(texts, st.none() | texts, st.none() | texts)
def test_a_written_store_document_can_be_read(
    store_id: str, table_format: str | None, layout: str | None
) -> None:
    if raw := written(lambda: store_document(store_id, table_format, layout)):
        assert Catalog.from_document(LocalStorage("/store"), raw).store_id == store_id


@given(manifests(), numbers, texts, st.lists(left_out, max_size=2), origins)
def test_a_written_manifest_and_acknowledgement_can_be_read(
    manifest: Any, number: int, text: str, records: list[LeftOutState], origin: dict[str, Any]
) -> None:
    for changes in (
        {"checkpoint_id": number},
        {"parallelism": number},
        {"started_at_ms": number},
        {"store_id": text},
        {"writer": replace(manifest.writer, command=text, generation=number)},
        {"left_out": tuple(records)},
        {"origin": origin},
        {"ranges": {text: RangeAssignment((1, 2))}},
    ):
        changed = replace(manifest, **changes)
        if raw := written(partial(manifest_to_json, changed)):
            assert manifest_from_json(raw, name="n") == changed
    for entry in manifest.keyed:
        answer = Acknowledgement(AttemptId(text, number, text), number, entry)
        if raw := written(answer.to_json):
            assert Acknowledgement.from_json(raw) == answer


def rows(store: StateStore) -> list[Any]:
    taken: list[Any] = store.restore().keyed("o", "s").to_arrow()["k"].to_pylist()
    return taken


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "first"
    with StateStore.open(str(folder), table_format="parquet").snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("o", "s", [{"k": 1}], key="k")
    return folder


@settings(max_examples=60)
@given(
    st.none() | origins,
    st.none() | texts,
    st.lists(left_out, max_size=1),
    st.none() | st.tuples(texts, numbers),
    st.none() | numbers,
    st.none() | texts,
)
def test_a_committed_checkpoint_can_be_restored_and_collected(
    taken: Path,
    origin: dict[str, Any] | None,
    command: str | None,
    records: list[LeftOutState],
    batch: tuple[str, int] | None,
    edge: int | None,
    label: str | None,
) -> None:
    """A refused call changes no file of the store."""
    folder = taken.parent / "second"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(taken, folder)
    store = StateStore.open(str(folder))
    before = file_bytes(folder)
    try:
        arguments: Mapping[str, Any] = {
            "graph": graph_of(edge),
            "batch": batch,
            "ranges": None if label is None else {label: RangeAssignment((128,))},
        }
        with store.snapshot(parallelism=1, **arguments) as checkpoint:
            before = file_bytes(folder)
            if origin is not None:
                checkpoint.collected.record(origin=origin)
            if command is not None:
                checkpoint.collected.record(command=command)
            checkpoint.collected.record(left_out=records)
            checkpoint.write_keyed("o", "s", [{"k": 2}], key="k")
    except StateStoreError:
        assert file_bytes(folder) == before
        assert rows(StateStore.open(str(folder))) == [1]
        return
    again = StateStore.open(str(folder))
    assert rows(again) == [2]
    assert again.checkpoint().manifest.origin == origin
    assert again.maintenance.verify(deep=True).is_intact
    again.maintenance.gc()


def graph_of(number: int | None) -> JobGraph | None:
    """Return a job whose edge has this number; None for a number that no edge can have."""
    if number is None or number < 0:
        return None
    edge = Edge("i", "o", number=number)
    return JobGraph((Node("i", parallelism=1, source=True), Node("o", parallelism=1)), (edge,))


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ({}, r"\$.origin: Object missing required field `command`"),
        ({"command": "mine"}, r"\$.origin: Object missing required field `checkpoint`"),
        ({"command": "mine", "checkpoint": 2}, r"\$.origin.checkpoint: the source of checkpoint 2"),
        ({"command": "purge", "checkpoint": 1}, "a purge must have 'savepoints' and 'expired'"),
        ({"command": "mine", "checkpoint": 1, "v": float("nan")}, "would be read as"),
        ({"command": "mine", "checkpoint": 1, "v": {1}}, "would be read as"),
        ({"command": "mine", "checkpoint": 1, "v": (1,)}, "would be read as"),
        ({"command": "mine", "checkpoint": 1, "v": 2**63}, "does not fit 64 bits"),
        ({"command": LONE, "checkpoint": 1}, "surrogates not allowed"),
    ],
)
def test_an_origin_is_refused_where_it_is_passed(
    taken: Path, tmp_path: Path, origin: dict[str, Any], message: str
) -> None:
    shutil.copytree(taken, tmp_path / "store")
    store = StateStore.open(str(tmp_path / "store"))
    with store.snapshot(parallelism=1) as checkpoint:
        with pytest.raises(InvalidArgumentError, match=message):
            checkpoint.collected.record(origin=origin)
        checkpoint.write_keyed("o", "s", [{"k": 2}], key="k")
    assert store.checkpoint().manifest.origin is None


def test_a_deep_origin_is_refused(taken: Path, tmp_path: Path) -> None:
    shutil.copytree(taken, tmp_path / "store")
    for levels in (40, 900, 100_000):
        deep: list[Any] = []
        for _ in range(levels):
            deep = [deep]
        with (
            pytest.raises(InvalidArgumentError),
            StateStore.open(str(tmp_path / "store")).snapshot(parallelism=1) as checkpoint,
        ):
            checkpoint.collected.record(origin={"command": "mine", "checkpoint": 1, "v": deep})


def test_a_pin_without_a_readable_holder_is_refused(taken: Path, tmp_path: Path) -> None:
    shutil.copytree(taken, tmp_path / "store")
    maintenance = StateStore.open(str(tmp_path / "store")).maintenance
    with pytest.raises(InvalidArgumentError, match="cannot be stored"):
        maintenance.pin(lease="1h", holder=LONE)
    assert maintenance.pins() == ()
