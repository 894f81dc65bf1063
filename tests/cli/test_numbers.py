"""Numbers in keys and rows on the command line, in settings and in options."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from statestore import StateStore
from statestore.cli.arguments import parse_key, parse_row, parse_value
from statestore.durations import milliseconds_of
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, SettingsError
from statestore.format.schema import DataType
from statestore.format.state import KeyedState
from statestore.jobgraph.graph import JobGraph
from statestore.restore.compare_plans import Prices
from statestore.rows.python_values import table_of_dicts
from statestore.settings import SettingsTable, from_table, read_toml

Run = Callable[..., Result]

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("small", pa.int8()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("money", pa.decimal128(10, 2)),
        ("many", pa.list_(pa.float64())),
        ("by", pa.map_(pa.string(), pa.int64())),
        ("inner", pa.struct([("n", pa.int64())])),
        ("t", pa.timestamp("us", "UTC")),
    ]
)
BIG = 2**53 + 1


class _Wait(SettingsTable, frozen=True, kw_only=True):
    seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 1.0
    times: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 1


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers") / "store"
    store = StateStore.open(str(folder), table_format="parquet")
    row = dict.fromkeys(SCHEMA.names) | {"k": 2**53}
    with store.snapshot(parallelism=1) as checkpoint:
        table = pa.Table.from_pylist([row], schema=SCHEMA)
        checkpoint.write_keyed("u", "s", table, key="k", max_parallelism=4)
    return folder


@pytest.fixture(scope="module")
def state(numbers: Path) -> KeyedState:
    return StateStore.open(str(numbers)).checkpoint().manifest.keyed_entry("u", "s").state


def stored(text: str, state: KeyedState) -> dict[str, Any]:
    """Return the values of a row in text, as the state stores them."""
    table = table_of_dicts([parse_row(text, state)], state.schema)
    (row,) = table.to_pylist()
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (f'{{"k": {BIG}}}', {"k": BIG}),
        (f'{{"k": {BIG}.0}}', {"k": BIG}),
        ('{"k": 1.0, "small": 1e2}', {"k": 1, "small": 100}),
        (f'{{"k": "{BIG}"}}', {"k": BIG}),
        ('{"d": 0.1, "f": 0.1}', {"d": 0.1, "f": struct.unpack("<f", struct.pack("<f", 0.1))[0]}),
        ('{"d": "NaN"}', {"d": math.nan}),
        ('{"d": "-Infinity"}', {"d": -math.inf}),
        ('{"d": 7}', {"d": 7.0}),
        ('{"money": 1.20}', {"money": Decimal("1.20")}),
        ('{"money": 12345678.9}', {"money": Decimal("12345678.90")}),
        ('{"many": [0.1, 1, null]}', {"many": [0.1, 1.0, None]}),
        (f'{{"by": [["a", {BIG}.0]]}}', {"by": [("a", BIG)]}),
        (f'{{"inner": {{"n": {BIG}}}}}', {"inner": {"n": BIG}}),
    ],
)
def test_numbers_are_stored_without_change(
    text: str, row: dict[str, Any], state: KeyedState
) -> None:
    assert repr(stored(text, state)) == repr(row)


def test_a_negative_zero_keeps_its_sign(state: KeyedState) -> None:
    for text in ('{"d": -0.0}', '{"d": -0}', '{"d": "-0"}'):
        assert math.copysign(1, stored(text, state)["d"]) == -1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"k": 1, "k": 1}', "the member 'k' occurs twice"),
        ('{"k": 1.5}', "'k' is long: 1.5 is not a whole number"),
        ('{"k": true}', "'k' is long, and true does not fit that type"),
        ('{"d": 1e400}', "'d' is double: 1E\\+400 is larger than the largest double"),
        ('{"d": "1e400"}', "'d' is double: 1E\\+400 is larger than the largest double"),
        (f'{{"d": {BIG}}}', "'d' is double: 9007199254740993 cannot be represented as double"),
        (
            f'{{"d": {BIG}.0}}',
            "'d' is double: 9007199254740993.0 cannot be represented as double",
        ),
        ('{"d": NaN}', "JSON has no NaN"),
        ('{"f": 16777217.0}', "'f' is float: 16777217.0 cannot be represented as float"),
        ('{"many": [1, 1e400]}', r"'many\[1\]' is double"),
        ('{"by": [["a", 1.5]]}', r"'by\[0\].value' is long"),
        ('{"by": [["a", 1], ["b"]]}', r"'by\[1\]' is an entry of a map"),
        ('{"by": [["a", 1], ["b", 2], ["a", 3]]}', r"'by' has the key 'a' twice; pass it once"),
        ('{"by": {"a": 1}}', r"'by' is map<string, long>: pass a JSON list of"),
        ('{"inner": {"n": 0.5}}', "'inner.n' is long"),
        ('{"inner": {}}', "'inner' is struct"),
        ('{"t": 7}', "'t' is timestamp, and 7 does not fit that type"),
        ('{"t": "2026-01-01T00:00:00.123456789"}', "is more precise than a microsecond"),
        (f'{{"k": {"9" * 5000}}}', "5,000 digits"),
    ],
)
def test_a_number_that_would_change_is_refused(text: str, reason: str, state: KeyedState) -> None:
    with pytest.raises(InvalidArgumentError, match=f"is not a row of state 's'.*{reason}"):
        parse_row(text, state)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"k": 9223372036854775808}', "the type's range"),
        ('{"small": 128}', "the type's range"),
        ('{"money": 1.234}', "more decimal places"),
        (f'{{"money": 0.{"3" * 4200}}}', "more decimal places"),
        ('{"money": 1e999999}', "more digits"),
    ],
)
def test_a_number_out_of_bounds_is_refused(text: str, reason: str, state: KeyedState) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        stored(text, state)


def test_an_integer_that_no_column_can_hold_is_refused(state: KeyedState) -> None:
    for column in ("k", "d", "money"):
        with pytest.raises(InvalidArgumentError, match="an integer of more than 4,300 digits"):
            table_of_dicts([{column: 10**5000}], state.schema)


@given(st.integers(-(2**63), 2**63 - 1))
def test_each_long_is_found_by_its_own_text(state: KeyedState, number: int) -> None:
    for text in (str(number), f"{number}.0", f"{Decimal(number):E}"):
        assert parse_key(text, state) == (number,)
        assert stored(f'{{"k": {text}}}', state) == {"k": number}


@given(st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False))
def test_each_double_is_stored_as_it_was_printed(state: KeyedState, number: float) -> None:
    text = json.dumps(number) if math.isfinite(number) else f'"{number}"'
    assert repr(stored(f'{{"d": {text}}}', state)) == repr({"d": number})


def test_a_missing_key_deletes_nothing(run: Run, numbers: Path) -> None:
    options = ("--state", "u/s", "--store", numbers, "--dry-run")
    for key in (str(BIG), f"{BIG}.0"):
        done = run("edit", *options, "--delete", key)
        assert (done.exit_code, " 0 deleted" in done.stdout) == (0, True)
    done = run("edit", *options, "--delete", f"{2**53}.0")
    assert " 1 deleted" in done.stdout


def test_output_can_be_read_back_without_change(run: Run, tmp_path: Path) -> None:
    table = pa.table(
        {
            "k": pa.array([BIG, -(2**63)]),
            "d": pa.array([0.1, -0.0]),
            "f": pa.array([0.1, 3.4e38], pa.float32()),
            "money": pa.array([Decimal("12345678901234567890.01"), None], pa.decimal128(30, 2)),
        }
    )
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", table, key="k", max_parallelism=4)
    state = store.checkpoint().manifest.keyed_entry("u", "s").state
    for row in table.to_pylist():
        options = ("--state", "u/s", "--store", tmp_path / "s")
        done = run("get", *options, "--output", "json", "--key", str(row["k"]))
        (shown,) = json.loads(done.stdout, parse_float=str)["rows"]
        assert shown["k"] == row["k"]
        given_back = json.dumps(json.loads(done.stdout)["rows"][0])
        assert repr(stored(given_back, state)) == repr(
            {name: value for name, value in row.items() if value is not None}
        )


class TestSettings:
    """Settings in TOML, and numbers in options."""

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("zstd_level = 1e400", "larger than the largest double"),
            ("zstd_level = 9007199254740993.0", "cannot be represented as double"),
            (f"zstd_level = {'1' * 5000}", "digits"),
        ],
    )
    def test_a_file_with_an_inexact_number_is_refused(
        self, tmp_path: Path, text: str, reason: str
    ) -> None:
        file = tmp_path / "conf.toml"
        file.write_text(text)
        with pytest.raises(SettingsError, match=rf"conf.toml: .*{reason}"):
            read_toml(file)

    @pytest.mark.parametrize("value", [math.inf, math.nan, 2**53 + 1])
    def test_a_float_is_within_its_bounds(self, value: float) -> None:
        with pytest.raises(SettingsError, match="seconds must be a number "):
            from_table({"seconds": value}, _Wait, where="conf.toml")

    def test_an_integer_has_64_bits(self) -> None:
        with pytest.raises(SettingsError, match="times must be an integer <= "):
            from_table({"times": 2**63}, _Wait, where="conf.toml")

    def test_a_job_graph_refuses_a_number_beyond_double(self) -> None:
        with pytest.raises(SettingsError, match=r"the job graph: .*larger than the largest double"):
            JobGraph.from_toml("[job]\nparallelism = 1e400")

    def test_numbers_of_very_many_digits_are_typed_errors(self, run: Run, numbers: Path) -> None:
        digits = "1" * 5000
        for arguments in (("show", digits), ("plan", "--parallelism", digits)):
            done = run(*arguments, "--store", numbers)
            assert done.exit_code in (2, 10), done.stderr
            assert done.stderr.startswith(("error: ", "Usage"))
        with pytest.raises(InvalidArgumentError, match="too long"):
            milliseconds_of(f"{digits}d")
        with pytest.raises((InvalidArgumentError, CheckpointNotFoundError)):
            StateStore.open(str(numbers)).checkpoint(digits)
        with pytest.raises(InvalidArgumentError):
            Prices.of({"per_gb_read": math.inf})


def test_nan_is_one_key_of_a_map() -> None:
    by_double: DataType = {"type": "map", "keyType": "double", "valueType": "long"}
    with pytest.raises(ValueError, match="'m' has the key nan twice; pass it once"):
        parse_value('[["NaN", 1], [0.5, 2], ["NaN", 3]]', by_double, "m")
    assert parse_value('[["NaN", 1], [0.5, 2]]', by_double, "m")[1] == (0.5, 2)
