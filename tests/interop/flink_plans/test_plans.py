"""Compiled plans: the states that follow from them are in the savepoints of real jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from statestore.errors import (
    CorruptionError,
    FormatVersionError,
    IncompatibleStateError,
    InvalidArgumentError,
    LeftOutStateError,
    NotFoundError,
    SchemaMismatchError,
    StateNotFoundError,
    UnsupportedTypeError,
)
from statestore.interop.flink import (
    ExportSelection,
    FlinkOperator,
    FlinkTarget,
    export_savepoint,
    import_savepoint,
    open_savepoint,
)
from statestore.interop.flink_plans import (
    FlinkPlan,
    PlanOperator,
    bootstrap_flink_state,
    read_flink_plan,
)
from statestore.interop.flink_plans.layouts import (
    Counter,
    ListOfRows,
    Pair,
    PlanState,
    Row,
    Seen,
    ValueLayout,
)
from statestore.interop.flink_plans.plan_file import parse_flink_plan, read_plan_record
from statestore.parquet.writer import ParquetOptions
from statestore.store import StateStore
from tests.interop.flink.exporting.test_export_imported import entries
from tests.interop.flink.goldens import FOLDER
from tests.servers.published import FLINK_SQL
from tests.support.stores import overtake

GOLDEN = FOLDER / "2.3_plan.json"
TOTALS, JOIN = "3_group-aggregate", "7_join"
SUPPORTED = {"changelog-normalize", "deduplicate", "global-group-aggregate", "group-aggregate"}
SUPPORTED |= {"join", "limit", "rank", "sort-limit"}
ROWTIME = ["12_deduplicate", "22_changelog-normalize", "5_deduplicate"]
"""Operators whose rows have a ROWTIME column: its kind is in Flink's bytes, but not in equality."""

Published = list[tuple[FlinkPlan, dict[str, FlinkOperator]]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """The plans of Flink's restore tests of streams, with the operators of their savepoints."""
    folder = tmp_path_factory.mktemp("published")
    FLINK_SQL.unpack("restore-tests", folder)
    found = []
    for place in sorted(folder.glob("restore-tests/stream-*/*/plan/*.json")):
        savepoint = place.parent.parent / "savepoint"
        if (savepoint / "_metadata").exists():
            operators = open_savepoint(str(savepoint)).operators
            found.append((read_flink_plan(str(place)), {one.metadata.id: one for one in operators}))
    return found


@pytest.mark.long
@pytest.mark.slow
def test_states_of_published_plans_are_those_of_their_savepoints(published: Published) -> None:
    """Each supported operator: its uid, all its states, their types, and its key groups."""
    found = 0
    other_bytes = set()
    for plan, operators in published:
        for operator in plan.operators:
            if operator.problem is not None:
                continue
            written = operators[operator.operator_id]
            real = {state.name: state for state in written.states if state.kind != "timers"}
            assert set(real) == {state.state for state in operator.states}, plan.place
            for state in operator.states:
                own, other = state.flink_state, real[state.state]
                assert own.kind == other.kind
                assert own.key.java_name == other.key.java_name
                assert own.value.java_name == other.value.java_name
                assert own.namespace == other.namespace
                assert state.is_single == (written.metadata.max_parallelism == 1)
                same = own.key.snapshot() == other.key.snapshot()
                if not (same and own.value.snapshot() == other.value.snapshot()):
                    other_bytes.add(operator.operator)
                found += 1
    assert sorted(other_bytes) == ROWTIME
    assert found == 82


@pytest.mark.long
@pytest.mark.slow
def test_all_operators_of_published_plans_with_state_are_known_or_named(
    published: Published,
) -> None:
    """No operator with keyed state is taken for one without, and each problem has a reason."""
    problems: dict[tuple[str, str], str] = {}
    for plan, operators in published:
        known = {operator.operator_id for operator in plan.operators}
        for number, operator in operators.items():
            names = {state.name for state in operator.states if state.kind != "timers"}
            if names:
                assert number in known, (plan.place, operator.title, names)
        problems |= {
            (operator.type, operator.problem): operator.operator
            for operator in plan.operators
            if operator.problem is not None
        }
    reasons = {
        reason
        for kind, reason in problems
        if kind.removeprefix("stream-exec-").rpartition("_")[0] in SUPPORTED
    }
    assert {reason.rpartition(":")[2][:40] for reason in reasons if reason} == {
        " its accumulator has a map of all values",
        "the accumulator of the function $FIRST_V",
        "the accumulator of the function `default",
        "the accumulator of the function my_sum1 ",
        "the layout of a top-N with the strategy ",
    }
    assert len(problems) > 20


def columns_of(layout: ValueLayout, values: pa.Array) -> dict[str, pa.Array]:
    """Return the columns of decoded values, as the layout names them."""
    match layout:
        case Row(fields):
            arrays = values.flatten()[1:]
            return {
                field.column: array
                for field, array in zip(fields, arrays, strict=True)
                if field.column is not None
            }
        case Counter(column):
            return {column: values}
        case Pair(first, second):
            left, right = values.flatten()
            return columns_of(first, left) | columns_of(second, right)
        case Seen():
            return {}
        case ListOfRows(row):
            return columns_of(row, values)


def table_of(operator: FlinkOperator, state: PlanState) -> pa.Table:
    """Return the table of a real state, from its decoded entries."""
    tables = []
    names = [column.name for column in state.table_columns]
    optional = [name for name in state.optional_columns if name == "position"]
    for rows in operator.rows(state.state):
        columns = columns_of(state.key, rows.key)
        if state.map_key is not None and rows.map_key is not None:
            columns |= columns_of(state.map_key, rows.map_key)
        assert rows.value is not None
        values = rows.value
        if isinstance(state.value, ListOfRows):
            owners = pc.list_parent_indices(values)
            columns = {name: column.take(owners) for name, column in columns.items()}
            lengths = pc.list_value_length(values).to_pylist()
            columns["position"] = pa.array([place for n in lengths for place in range(n)])
            values = values.flatten()
        columns |= columns_of(state.value, values)
        tables.append(pa.table({name: columns[name] for name in [*names, *optional]}))
    return pa.concat_tables(tables)


def without_kind(entry: tuple[Any, ...], operator: PlanOperator) -> tuple[Any, ...]:
    """Return an entry without the kind of its row, which a deduplication ignores in its state.

    A real state has there whether the row was the first of its key, or an update.
    """
    *place, value = entry
    is_row = "deduplicate" in operator.type or "normalize" in operator.type
    if is_row and len(value) > 4:
        value = value[:4] + b"\0" + value[5:]
    return (*place, value)


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.long)])
def test_real_entries_become_tables_and_the_same_entries(
    published: Published, tmp_path: Path, step: int
) -> None:
    """Byte for byte: keys, keys of maps, rows and counts, of all states without a TTL."""
    compared = 0
    for number, (plan, operators) in enumerate(published[::step]):
        whole = [
            operator
            for operator in plan.operators
            if operator.states
            and not any(state.ttl_ms for state in operator.states)
            and any(operators[operator.operator_id].rows(state.state) for state in operator.states)
        ]
        if not whole:
            continue
        store = StateStore.open(str(tmp_path / f"store-{number}"), table_format="parquet")
        for operator in whole:
            written = operators[operator.operator_id]
            for state in operator.states:
                if any(True for _ in written.rows(state.state)):
                    table = table_of(written, state)
                    bootstrap_flink_state(store, plan, operator.operator, state.state, table)
        missing = {record.label for record in store.checkpoint().manifest.left_out}
        target = str(tmp_path / f"savepoint-{number}")
        export_savepoint(store, target, selection=ExportSelection(leave_out=missing))
        exported = {one.metadata.id: one for one in open_savepoint(target).operators}
        for operator in whole:
            before, after = (
                {
                    without_kind(entry, operator): count
                    for entry, count in entries(one[operator.operator_id]).items()
                    if not entry[0].startswith("_timer_state")
                }
                for one in (operators, exported)
            )
            assert after == before, (plan.place, operator.operator)
            compared += sum(before.values())
    assert compared > 100


@pytest.fixture
def plan(tmp_path: Path) -> FlinkPlan:
    (tmp_path / "plan.json").write_bytes(GOLDEN.read_bytes())
    return read_flink_plan(str(tmp_path / "plan.json"))


def totals(**columns: Any) -> pa.Table:
    return pa.table({"user_id": ["ann", None], "purchases": [2, 1], "total": [3, None]} | columns)


def test_a_state_has_the_columns_of_the_plan(plan: FlinkPlan, store: StateStore) -> None:
    schema = totals().schema
    planned = bootstrap_flink_state(store, plan, TOTALS, "accState", schema, dry_run=True)
    assert [(c.name, c.type, c.role, c.hashed_as) for c in planned.columns] == [
        ("user_id", "string", "key", "STRING"),
        ("purchases", "long", "value", None),
        ("total", "decimal(38,2)", "value", None),
    ]
    made = bootstrap_flink_state(store, plan, TOTALS, "accState", totals())
    assert made.columns == planned.columns
    assert (made.rows, made.hash_scheme, made.max_parallelism) == (2, "flink-sql", 128)
    rows = store.restore(parallelism=1).keyed(TOTALS, "accState").to_arrow(0).to_pylist()
    assert sorted((row["user_id"] or "", str(row["total"])) for row in rows) == [
        ("", "None"),
        ("ann", "3.00"),
    ]


def test_an_export_names_the_states_without_a_table(
    plan: FlinkPlan, store: StateStore, tmp_path: Path
) -> None:
    bootstrap_flink_state(store, plan, TOTALS, "accState", totals())
    with pytest.raises(LeftOutStateError, match=f"{JOIN}/left-records .no table was given"):
        export_savepoint(store, str(tmp_path / "to"))
    left = pa.table({"user_id": ["a"], "amount": [1], "row_count": [2], "match_count": [1]})
    bootstrap_flink_state(store, plan, JOIN, "left-records", left)
    with pytest.raises(LeftOutStateError, match=f"lacks some state.*: {JOIN}/right-records .no"):
        export_savepoint(store, str(tmp_path / "to"))
    right = pa.table({"user_id": ["a"], "city": ["b"]})
    bootstrap_flink_state(store, plan, JOIN, "right-records", right)
    done = export_savepoint(store, str(tmp_path / "to"))
    assert done.is_complete
    assert {operator.operator for operator in done.operators} == {TOTALS, JOIN}


def test_all_differences_of_columns_are_named(plan: FlinkPlan, store: StateStore) -> None:
    table = totals(purchases=["two", "one"], other=[1, 2]).drop_columns(["total"])
    with pytest.raises(SchemaMismatchError) as caught:
        bootstrap_flink_state(store, plan, TOTALS, "accState", table, table="t.parquet")
    assert str(caught.value).startswith(
        f"t.parquet cannot become state 'accState' of operator '{TOTALS}': the column 'purchases' "
        "is string, but the plan has BIGINT NOT NULL; the column 'total' (DECIMAL(38, 2)) is "
        "missing; the column 'other' is not in the plan. "
    )


@pytest.mark.parametrize(
    ("operator", "state", "row", "message"),
    [
        (
            TOTALS,
            "accState",
            {"user_id": "a", "purchases": None, "total": 1},
            "row 2 of the table has a value in the column 'purchases' that is null, but the",
        ),
        (
            TOTALS,
            "accState",
            {"user_id": "a", "purchases": 1, "total": 0.125},
            "total",
        ),
        (
            JOIN,
            "left-records",
            {"user_id": "a", "amount": 1.5, "row_count": 0, "match_count": 0},
            "'row_count' that is less than 1",
        ),
        (
            JOIN,
            "left-records",
            {"user_id": "a", "amount": 1.5, "row_count": 1, "match_count": -1},
            "'match_count' that is less than 0",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_nothing_is_written(
    operator: str,
    state: str,
    row: dict[str, Any],
    message: str,
    plan: FlinkPlan,
    store: StateStore,
) -> None:
    good = {"user_id": "b", "purchases": 1, "total": 2.5, "amount": 2.5}
    good |= {"row_count": 1, "match_count": 0}
    rows = pa.Table.from_pylist([{name: good[name] for name in row}, row])
    with pytest.raises(InvalidArgumentError, match=message):
        bootstrap_flink_state(store, plan, operator, state, rows)
    assert not Path(store.url).exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_stream_that_does_not_fit_in_memory_is_checked_row_by_row(
    plan: FlinkPlan, tmp_path: Path
) -> None:
    """Its columns are converted while it is read, and a row is counted over all batches."""
    small = ParquetOptions(memory_bytes=2**17)
    store = StateStore.open(str(tmp_path / "small"), table_format="parquet", parquet=small)
    schema = pa.schema({"user_id": pa.string(), "purchases": pa.int32(), "total": pa.float64()})

    def batches(last: int | None) -> Iterator[pa.RecordBatch]:
        for begin in range(0, 6_000, 500):
            numbers = range(begin, begin + 500)
            counts = [last if n == 4_321 else n for n in numbers]
            columns = [[f"user {n}" for n in numbers], counts, [n / 4 for n in numbers]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(*pair) for pair in zip(columns, schema.types, strict=True)], schema=schema
            )

    bootstrap = partial(bootstrap_flink_state, store, plan, TOTALS, "accState", table="t")
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="row 4322 of t has a value in the col"):
            bootstrap(batches(None), dry_run=dry_run)
    assert bootstrap(batches(1), dry_run=True).rows == 6_000
    assert store.checkpoints() == ()
    assert bootstrap(batches(1)).rows == 6_000
    (totals_of_store,) = (
        store.query(f'SELECT sum(purchases) AS n, sum(total) AS t FROM "{TOTALS}"."accState"')
        .read_all()
        .to_pylist()
    )
    assert totals_of_store["n"] == sum(range(6_000)) - 4_321 + 1
    assert totals_of_store["t"] == sum(range(6_000)) / 4


def test_a_plan_that_changed_since_it_was_read_is_refused(
    plan: FlinkPlan, store: StateStore, tmp_path: Path
) -> None:
    text = GOLDEN.read_text()
    (tmp_path / "plan.json").write_text(json.dumps(json.loads(text)))  # only white space
    bootstrap_flink_state(store, plan, TOTALS, "accState", totals())
    (tmp_path / "plan.json").write_text(text.replace("`purchases`", "`number`"))
    with pytest.raises(IncompatibleStateError, match="was changed since it was read"):
        bootstrap_flink_state(store, plan, JOIN, "right-records", RIGHT)
    changed = read_flink_plan(str(tmp_path / "plan.json"))
    with pytest.raises(SchemaMismatchError, match=f"has states for the plan {tmp_path}/plan.json"):
        bootstrap_flink_state(store, changed, JOIN, "right-records", RIGHT)
    assert len(store.checkpoints()) == 1


RIGHT = pa.table({"user_id": ["a"], "city": ["b"]})


def test_another_plan_that_comes_first_is_noticed_by_the_writer(
    plan: FlinkPlan, store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer compares the plans again after it has claimed the store."""
    other = tmp_path / "other.json"
    other.write_text(GOLDEN.read_text().replace("`purchases`", "`number`"))
    columns = totals().rename_columns(["user_id", "number", "total"])
    another = read_flink_plan(str(other))
    overtake(
        monkeypatch, lambda: bootstrap_flink_state(store, another, TOTALS, "accState", columns)
    )
    with pytest.raises(SchemaMismatchError, match="begin a new store for the new plan"):
        bootstrap_flink_state(store, plan, TOTALS, "accState", totals(), replace=True)
    assert len(store.checkpoints()) == 1


@pytest.mark.parametrize(("version", "is_older"), [("1.20", True), ("2.2.1", True), ("2.3", False)])
def test_a_flink_that_is_older_than_the_plan_is_refused(
    version: str, is_older: bool, plan: FlinkPlan, store: StateStore, tmp_path: Path
) -> None:
    bootstrap_flink_state(store, plan, TOTALS, "accState", totals())
    selection, target = ExportSelection(leave_out=[JOIN]), FlinkTarget(version=version)
    place = str(tmp_path / "to")
    if is_older:
        with pytest.raises(IncompatibleStateError, match=r"was compiled by Flink 2\.3, and Flink"):
            export_savepoint(store, place, selection=selection, target=target)
        assert not Path(place).exists()
    else:
        assert export_savepoint(store, place, selection=selection, target=target).operators


@pytest.mark.parametrize("name", [TOTALS, f"{TOTALS}/accState"])
def test_types_of_a_plan_are_not_declared_again(
    name: str, plan: FlinkPlan, store: StateStore, tmp_path: Path
) -> None:
    bootstrap_flink_state(store, plan, TOTALS, "accState", totals())
    with pytest.raises(InvalidArgumentError, match="its types are those of a compiled plan"):
        export_savepoint(
            store,
            str(tmp_path / "to"),
            selection=ExportSelection(leave_out=[JOIN]),
            target=FlinkTarget(types={name: "Long"}),
        )


def test_imported_states_and_those_of_a_plan_do_not_mix(
    plan: FlinkPlan, store: StateStore, tmp_path: Path
) -> None:
    bootstrap_flink_state(store, plan, TOTALS, "accState", totals())
    selection = ExportSelection(leave_out=[JOIN])
    done = export_savepoint(store, str(tmp_path / "to"), selection=selection)
    with pytest.raises(InvalidArgumentError, match="was not imported from a Flink savepoint"):
        import_savepoint(done.savepoint, store)
    imported = StateStore.open(str(tmp_path / "imported"), table_format="parquet")
    import_savepoint(done.savepoint, imported)
    with pytest.raises(InvalidArgumentError, match="was imported from a savepoint and has the op"):
        bootstrap_flink_state(imported, plan, TOTALS, "accState", totals())
    assert len(store.checkpoints()) == len(imported.checkpoints()) == 1


def test_unknown_operators_and_states_are_named(plan: FlinkPlan, store: StateStore) -> None:
    with pytest.raises(StateNotFoundError, match=f"it has {TOTALS}, {JOIN}"):
        bootstrap_flink_state(store, plan, "4_rank", "accState", totals())
    with pytest.raises(StateNotFoundError, match="it has left-records, right-records"):
        bootstrap_flink_state(store, plan, JOIN, "accState", totals())


def test_an_operator_whose_layout_is_not_known_is_refused(
    plan: FlinkPlan, store: StateStore
) -> None:
    text = GOLDEN.read_text().replace('"$SUM$1"', '"$LISTAGG$1"')
    changed = parse_flink_plan(text.encode(), "plan.json")
    with pytest.raises(UnsupportedTypeError, match=r"function \$LISTAGG\$1 of 'total' is not know"):
        bootstrap_flink_state(store, changed, TOTALS, "accState", totals())
    assert [state.operator for state in changed.states] == [JOIN, JOIN]
    assert len(plan.states) == 3


def test_the_store_has_no_options_of_tables(plan: FlinkPlan, store: StateStore) -> None:
    """They can have passwords. What the states depend on is kept."""
    assert "file:///data/purchases" in GOLDEN.read_text()
    bootstrap_flink_state(store, plan, TOTALS, "accState", totals())
    kept = read_plan_record(store.restore())
    assert kept is not None
    assert "file:///" not in kept.outline
    assert "connector" not in kept.outline
    assert (kept.digest, kept.states) == (plan.digest, plan.states)


@pytest.mark.parametrize("version", ["1.18", "2.4", "3.0"])
def test_a_plan_of_an_unknown_flink_is_refused(version: str) -> None:
    text = GOLDEN.read_text().replace('"flinkVersion": "2.3"', f'"flinkVersion": "{version}"')
    text = text.replace('"flinkVersion" : "2.3"', f'"flinkVersion" : "{version}"')
    with pytest.raises(FormatVersionError, match=f"compiled by Flink {version}, whose state"):
        parse_flink_plan(text.encode(), "plan.json")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"flinkVersion": 2}', "[" * 100_000, "\xff", '"\\ud800"']
)
def test_a_file_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(CorruptionError, match=r"^plan\.json is not a compiled plan of Flink"):
        parse_flink_plan(text.encode("latin-1"), "plan.json")


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="check the path of the plan"):
        read_flink_plan(str(tmp_path / "plan.json"))


@pytest.mark.parametrize("place", [".", "plans/", ""])
def test_a_folder_is_no_plan(place: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a file: name the JSON"):
        read_flink_plan(place)


@pytest.mark.parametrize("other", [2, True])
def test_a_plan_whose_nodes_are_not_distinct_is_refused(other: int) -> None:
    """One of the nodes would be lost, with its state."""
    document = json.loads(GOLDEN.read_text())
    document["nodes"].append(dict(document["nodes"][1], id=other))
    with pytest.raises(CorruptionError, match=r"two nodes with the id 2|node without id and type"):
        parse_flink_plan(json.dumps(document).encode(), "plan.json")


@pytest.mark.long
@pytest.mark.slow
def test_every_damaged_member_of_a_plan_is_an_error_with_a_type(plan: FlinkPlan) -> None:
    """Each value in the plan is replaced, one after another, and each member is removed."""
    outcomes: set[int | str] = set()
    for change in changes(json.loads(plan.outline)):
        try:
            outcomes.add(len(parse_flink_plan(change.encode(), "plan.json").states))
        except (CorruptionError, FormatVersionError, InvalidArgumentError) as error:
            outcomes.add(type(error).__name__)
    assert {"CorruptionError", "FormatVersionError", 1, 2, 3} <= outcomes
    assert len(plan.states) == 3


def changes(document: Any) -> Iterator[str]:
    """Yield the JSON of a document with one value replaced or removed."""
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], dict | list):
                visit(value[key])

    visit(document)
    for parent, key in places:
        before = parent[key]
        others: tuple[Any, ...] = (None, 99, "x", [{}])
        for other in others:
            parent[key] = other
            yield json.dumps(document)
        parent[key] = before
        if isinstance(parent, dict):
            members = list(parent.items())
            del parent[key]
            yield json.dumps(document)
            parent.clear()
            parent.update(members)


def test_uids_follow_the_format(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(GOLDEN.read_bytes())
    place = str(tmp_path / "plan.json")
    plan = read_flink_plan(place, uid_format="<type>-<version>-<id>")
    uids = [operator.operator for operator in plan.operators]
    assert uids == ["stream-exec-group-aggregate-1-3", "stream-exec-join-1-7"]
    with pytest.raises(InvalidArgumentError, match="the uid format must have <id>"):
        read_flink_plan(place, uid_format="<version>")


def test_rows_without_columns_are_inserts() -> None:
    """Such a row is the value of SELECT DISTINCT."""
    values = Row(()).part(pa.schema([])).values(pa.table({"id": [1, 2]}))
    assert values.to_pylist() == [{"row_kind": 0}, {"row_kind": 0}]
