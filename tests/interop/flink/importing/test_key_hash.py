"""A recipe for the hash of keys is used after it gave the stored key group of every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, StateNotFoundError, UnsupportedTypeError
from statestore.interop.flink import (
    FlinkSavepoint,
    ImportedSavepoint,
    export_savepoint,
    import_savepoint,
    open_savepoint,
    repack_savepoint,
)
from statestore.interop.flink.columns.state_columns import FLINK_KEY_GROUP, EntryForm
from statestore.interop.flink.options import SavepointHints
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import EnumType, Scalar, TupleType
from statestore.interop.flink.types.key_recipes import recipe_hash_codes
from statestore.interop.flink.types.kryo import KryoType
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.interop.flink.types.scala_types import CaseClassType, OptionType
from statestore.jobgraph.operators import operator_id
from statestore.keys.arrow import key_groups_of_hashes
from statestore.keys.hashing import key_group_of
from tests.interop.flink.written import written_savepoint

LONG, TEXT = Scalar("Long"), Scalar("String")
POJO = PojoType(
    "a.Key", (PojoField("a", "a.Key", TEXT), PojoField("b", "a.Key", Scalar("Integer")))
)
RECIPE = "record(a, b)"
USERS = [{"a": name, "b": number} for number, name in enumerate(("ann", "bob", "", "ü", "eve"))]
CASE = CaseClassType("a.Pair", (TEXT, OptionType(LONG)))
PAIRS = [{"f0": name, "f1": number} for name, number in (("ann", 1), ("bob", None), ("", 1 << 40))]
NO_CLASSES = 3 * bytes.fromhex("000004f2c69a3d70 00000000")
Entries = set[tuple[int, bytes, bytes]]


def groups_of(recipe: str, key: FlinkType, keys: list[Any], most: int = 128) -> list[int]:
    codes = recipe_hash_codes(recipe, key, pa.array(keys, key.arrow_type()))
    groups: list[int] = key_groups_of_hashes(codes, most).tolist()
    return groups


def savepoint(
    folder: Path, key: FlinkType, keys: list[Any], groups: list[int], number: int = 1
) -> Path:
    column = pa.array(keys, key.arrow_type())
    values = [number * place for place in range(len(keys))]
    return written_savepoint(folder, key, column, values, groups=groups, number=number)


def imported(place: Path, store: StateStore, recipe: str | None = None) -> ImportedSavepoint:
    hints = SavepointHints(
        uids={operator_id("big"): "big"}, key_hash=None if recipe is None else {"big": recipe}
    )
    return import_savepoint(str(place), store, hints=hints)


def new_store(folder: Path) -> StateStore:
    return StateStore.open(str(folder / "store"), table_format="parquet")


def entries(whole: FlinkSavepoint) -> Entries:
    return {
        (part.key_group, key, value)
        for operator in whole.operators
        for part in operator.entries()
        for key, value in zip(
            part.keys.arrow().to_pylist(), part.values.arrow().to_pylist(), strict=True
        )
    }


def moved(found: Entries, key: FlinkType, groups: dict[bytes, int]) -> Entries:
    """Return the entries of 128 key groups in other key groups, by the bytes of keys."""
    return {
        (groups[bytes(raw[1:-1])], groups[bytes(raw[1:-1])].to_bytes(2, "big") + raw[1:], value)
        for _, raw, value in found
    }


@pytest.mark.parametrize(
    ("key", "keys", "given", "recorded"),
    [
        pytest.param(POJO, USERS, RECIPE, RECIPE, id="pojo"),
        pytest.param(CASE, PAIRS, None, "scala", id="case class"),
        pytest.param(CASE, PAIRS, "scala", "scala", id="case class, given"),
        pytest.param(
            TupleType("Tuple2", (CASE, LONG)),
            [{"f0": pair, "f1": 5} for pair in PAIRS],
            None,
            "scala",
            id="tuple of a case class",
        ),
        pytest.param(OptionType(TEXT), ["a", None], "scala", "scala", id="option, given"),
        pytest.param(OptionType(TEXT), ["a", None, "b"], None, "scala", id="option"),
    ],
)
def test_state_by_a_class_of_the_job_is_rescaled(
    key: FlinkType, keys: list[Any], given: str | None, recorded: str, tmp_path: Path
) -> None:
    place = savepoint(tmp_path / "s", key, keys, groups_of(recorded, key, keys))
    store = new_store(tmp_path)
    (state,) = imported(place, store, given).record.states
    nested = EntryForm.KEY_BYTES  # no key column has fields of fields
    form = nested if isinstance(key, TupleType) else EntryForm.KEY_COLUMNS
    assert (state.form, state.key_hash) == (form, recorded)
    rows = store.restore(parallelism=1).keyed("big", "count").to_arrow(0)
    assert sorted(rows.column(FLINK_KEY_GROUP).to_pylist()) == sorted(
        groups_of(recorded, key, keys)
    )
    before = entries(open_savepoint(str(place)))
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(open_savepoint(str(tmp_path / "same"))) == before
    raw = key.write(pa.array(keys, key.arrow_type())).to_pylist()
    groups = dict(zip(raw, groups_of(recorded, key, keys, 720), strict=True))
    export_savepoint(store, str(tmp_path / "more"), max_parallelism=720)
    assert entries(open_savepoint(str(tmp_path / "more"))) == moved(before, key, groups)
    key_hash = {} if given is None else {operator_id("big"): given}
    repack_savepoint(str(place), str(tmp_path / "packed"), max_parallelism=720, key_hash=key_hash)
    assert entries(open_savepoint(str(tmp_path / "packed"))) == moved(before, key, groups)


def test_a_new_key_gets_its_key_group_from_the_recipe(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "s", POJO, USERS, groups_of(RECIPE, POJO, USERS))
    store = new_store(tmp_path)
    imported(place, store, RECIPE)
    schema = store.restore(parallelism=1).keyed("big", "count").to_arrow(0).schema
    new = pa.Table.from_pylist([{"key_a": "new", "key_b": 9, "value": 7}], schema)
    with store.snapshot(parallelism=1) as snapshot:
        snapshot.write_changes("big", "count", new.drop_columns(["key_group"]))
        snapshot.carry_rest()
    export_savepoint(store, str(tmp_path / "to"))
    (raw,) = POJO.write(pa.array([{"a": "new", "b": 9}], POJO.arrow_type())).to_pylist()
    (group,) = groups_of(RECIPE, POJO, [{"a": "new", "b": 9}])
    added = entries(open_savepoint(str(tmp_path / "to"))) - entries(open_savepoint(str(place)))
    assert added == {(group, bytes([group]) + raw + b"\0", (7).to_bytes(8, "big"))}


def test_a_recipe_that_puts_one_key_elsewhere_is_refused_with_the_key(tmp_path: Path) -> None:
    groups = groups_of(RECIPE, POJO, USERS)
    groups[3] = (groups[3] + 1) % 128
    place = savepoint(tmp_path / "s", POJO, USERS, groups)
    said = (
        r"the recipe 'record\(a, b\)' for the keys of operator .* does not hold: "
        r"it puts the key \{'a': 'ü', 'b': 3\} of state 'count' into key group "
        rf"{(groups[3] - 1) % 128}, but it is stored in key group {groups[3]}\. Compare the recipe"
    )
    with pytest.raises(InvalidArgumentError, match=said):
        imported(place, new_store(tmp_path), RECIPE)
    assert not list(tmp_path.glob("store/checkpoints/*.json"))
    with pytest.raises(InvalidArgumentError, match=said):
        repack_savepoint(
            str(place),
            str(tmp_path / "to"),
            max_parallelism=720,
            key_hash={operator_id("big"): RECIPE},
        )
    assert not (tmp_path / "to" / "_metadata").exists()


def test_a_case_class_with_a_hash_of_its_own_keeps_its_key_groups(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "s", CASE, PAIRS, [1, 2, 3])
    store = new_store(tmp_path)
    (state,) = imported(place, store).record.states
    assert (state.form, state.key_hash) == (EntryForm.KEY_COLUMNS, None)
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(open_savepoint(str(tmp_path / "same"))) == entries(open_savepoint(str(place)))
    with pytest.raises(UnsupportedTypeError, match=r"pass it with --key-hash \(key_hash=\)"):
        export_savepoint(store, str(tmp_path / "more"), max_parallelism=720)
    with pytest.raises(UnsupportedTypeError, match=r"pass it with --key-hash \(key_hash=\)"):
        repack_savepoint(str(place), str(tmp_path / "packed"), max_parallelism=720)
    with pytest.raises(InvalidArgumentError, match="the recipe 'scala' for the keys of operator"):
        imported(place, new_store(tmp_path / "other"), "scala")


def test_a_recipe_is_refused_for_a_key_after_the_year_9999(tmp_path: Path) -> None:
    """Python has no date for such a key, which is imported with its key group all the same."""
    case = CaseClassType("a.Due", (Scalar("LocalDate"),))
    days = pa.array([3_000_000, 2_999_999], pa.int32()).cast(pa.date32())
    keys = pa.StructArray.from_arrays([days], fields=list(case.arrow_type()))
    place = written_savepoint(tmp_path / "s", case, keys, [1, 2], groups=[5, 99])
    with pytest.raises(InvalidArgumentError, match=r"the recipe 'scala' .* puts the key .*10183-"):
        imported(place, new_store(tmp_path / "refused"), "scala")
    store = new_store(tmp_path)
    (state,) = imported(place, store).record.states
    assert (state.form, state.key_hash) == (EntryForm.KEY_COLUMNS, None)
    rows = store.restore(parallelism=1).keyed("big", "count").to_arrow(0)
    columns = [rows[state.names["key"][0]].cast(pa.int32()), rows[FLINK_KEY_GROUP], rows["value"]]
    found = zip(*(column.to_pylist() for column in columns), strict=True)
    assert sorted(found) == [(2_999_999, 99, 2), (3_000_000, 5, 1)]


def test_a_few_keys_do_not_prove_the_hash_of_a_case_class(tmp_path: Path) -> None:
    """It was right for two keys, so the next savepoint can prove it, and the third follows it."""
    store = new_store(tmp_path)
    for number, count, recipe in ((1, 2, None), (2, 3, "scala"), (3, 1, "scala")):
        keys = PAIRS[:count]
        place = savepoint(
            tmp_path / f"s{number}", CASE, keys, groups_of("scala", CASE, keys), number
        )
        assert imported(place, store).record.states[0].key_hash == recipe


@pytest.mark.parametrize(
    ("key", "keys", "recipe", "said"),
    [
        (LONG, [1], "record(x)", r"are Long, whose hash is known: remove the recipe 'record\(x"),
        (EnumType("a.E", ("A",)), ["A"], "record(x)", "differ in every Java process, so"),
        (KryoType("a.B", NO_CLASSES), [b"\x09\x02"], "record(x)", "Kryo<Long>, whose hash is kno"),
        (KryoType("a.B", NO_CLASSES), [b"\x0b"], "record(x)", r"no field 'x'; the fields are none"),
        (POJO, USERS[:1], "java:a.hashCode()", "is none of scala, record"),
        (POJO, USERS[:1], "python:1", "no function is registered as '1'"),
        (POJO, USERS[:1], "scala", "their hash depends on the job's own class"),
    ],
    ids=str,
)
def test_a_recipe_that_does_not_fit_is_refused(
    key: FlinkType, keys: list[Any], recipe: str, said: str, tmp_path: Path
) -> None:
    place = savepoint(tmp_path / "s", key, keys, [key_group_of(1, max_parallelism=128)])
    with pytest.raises(InvalidArgumentError, match=said):
        imported(place, new_store(tmp_path), recipe)
    assert not list(tmp_path.glob("store/checkpoints/*.json"))


def test_a_recipe_of_an_unknown_operator_is_refused(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "s", POJO, USERS, groups_of(RECIPE, POJO, USERS))
    hints = SavepointHints(key_hash={"small": RECIPE})
    with pytest.raises(StateNotFoundError, match="has no operator 'small'"):
        import_savepoint(str(place), new_store(tmp_path), hints=hints)
    with pytest.raises(StateNotFoundError, match="has no operator 'small'"):
        repack_savepoint(
            str(place), str(tmp_path / "to"), max_parallelism=9, key_hash={"small": RECIPE}
        )


@pytest.mark.slow
def test_a_later_savepoint_is_checked_with_the_stored_recipe(tmp_path: Path) -> None:
    store, groups = new_store(tmp_path), groups_of(RECIPE, POJO, USERS)
    imported(savepoint(tmp_path / "s1", POJO, USERS, groups), store, RECIPE)
    done = imported(savepoint(tmp_path / "s2", POJO, USERS, groups, number=2), store)
    assert (done.is_incremental, done.record.states[0].key_hash) == (True, RECIPE)
    other = "objects(b, a)"
    later = savepoint(tmp_path / "s3", POJO, USERS, groups_of(other, POJO, USERS), number=3)
    with pytest.raises(InvalidArgumentError, match=r"does not hold: it puts the key"):
        imported(later, store)
    (state,) = imported(later, store, other).record.states
    assert state.key_hash == other
    assert store.checkpoints() == (1, 2, 3)


def test_a_later_savepoint_of_a_class_that_got_a_hash_of_its_own(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    first = savepoint(tmp_path / "s1", CASE, PAIRS, groups_of("scala", CASE, PAIRS))
    assert imported(first, store).record.states[0].key_hash == "scala"
    later = savepoint(tmp_path / "s2", CASE, PAIRS, [1, 2, 3], number=2)
    assert imported(later, store).record.states[0].key_hash is None
    export_savepoint(store, str(tmp_path / "to"))
    assert entries(open_savepoint(str(tmp_path / "to"))) == entries(open_savepoint(str(later)))
