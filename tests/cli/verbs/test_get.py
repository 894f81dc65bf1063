from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

from statestore import StateStore
from statestore.cli.arguments import column_values, parse_key, parse_row
from statestore.errors import InvalidArgumentError
from statestore.restore.row_files import json_value

Run = Callable[..., Result]


def get(run: Run, store: Path, uid: str, key: str, *arguments: str) -> Result:
    options = ("--state", f"{uid}/totals", "--key", key, "--store", store)
    return run("get", *arguments, *options)


def test_a_string_key_needs_no_quotes(run: Run, fraud: Path) -> None:
    done = get(run, fraud, "totals-by-user", "u17")
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["user_id", "total"],
        ["u17", "17"],
    ]


@pytest.mark.parametrize(
    ("uid", "key", "rows"),
    [
        ("totals-by-user", "u17", [{"user_id": "u17", "total": 17}]),
        ("totals-by-card", "7", [{"card": 7, "total": 3.0}]),
        ("totals-by-card", "-5", [{"card": -5, "total": 1.5}]),
        ("totals-by-card", "0", [{"card": 0, "total": "NaN"}]),
        ("totals-by-shop", '["DE", 18]', [{"country": "DE", "shop": 18, "total": 2}]),
        (
            "totals-by-shop",
            '{"shop": 17, "country": "FR"}',
            [{"country": "FR", "shop": 17, "total": 3}],
        ),
        ("totals-by-user", "nobody", []),
    ],
)
def test_keys_of_every_kind_as_json(
    run: Run, fraud: Path, uid: str, key: str, rows: list[dict[str, Any]]
) -> None:
    done = get(run, fraud, uid, key, "1", "--output", "json")
    document = json.loads(done.stdout)
    assert document["rows"] == rows
    assert (document["checkpoint_id"], document["operator"], document["state"]) == (
        1,
        uid,
        "totals",
    )


def test_states_without_a_row_of_the_key_are_named(run: Run, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        for state, key in (("a", "k"), ("b", "other"), ("c", "other")):
            checkpoint.write_keyed("u", state, [{"id": key, "v": 1}], key="id")
    done = run("get", "--key", "k", "--store", store.url)
    assert done.stdout.splitlines()[-1] == "no rows: u/b, u/c"
    assert len(done.stdout.splitlines()) == 3
    assert "no rows" not in run("get", "--key", "k", "--state", "u/a", "--store", store.url).stdout


def test_a_missing_key_is_a_valid_result(run: Run, fraud: Path) -> None:
    done = get(run, fraud, "totals-by-user", "nobody")
    assert done.exit_code == 0
    assert done.stdout.startswith("no rows have key [\"nobody\"] in state 'totals'")


@pytest.mark.parametrize(
    ("uid", "key"),
    [
        ("totals-by-card", "seven"),
        ("totals-by-card", "1_000"),
        ("totals-by-card", str(2**63)),
        ("totals-by-shop", "DE"),
        ("totals-by-shop", '["DE"]'),
        ("totals-by-shop", '{"country": "DE", "shap": 1}'),
        ("totals-by-shop", '["DE", "x"]'),
        ("totals-by-shop", '["DE", 1.5]'),
    ],
)
def test_an_invalid_key_is_refused_with_the_columns(
    run: Run, fraud: Path, uid: str, key: str
) -> None:
    done = get(run, fraud, uid, key)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is not a key of state 'totals'" in done.stderr
    assert ("card long" if uid == "totals-by-card" else "country string, shop long") in done.stderr


STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([date(2026, 1, 31)], pa.date32(), ["2026-01-31", '"2026-01-31"']),
        (
            [datetime(2026, 1, 31, 12, tzinfo=UTC)],
            pa.timestamp("us", "UTC"),
            ["2026-01-31T12:00:00Z", "2026-01-31T13:00+01:00", '"2026-01-31T12:00Z"'],
        ),
        ([datetime(2026, 1, 31, 12)], pa.timestamp("us"), ["2026-01-31T12:00:00"]),
        ([Decimal("1.50")], pa.decimal128(10, 2), ["1.5", "1.50", '"1.50"']),
        (["u17"], pa.string(), ["u17", '"u17"', r'"\u007517"']),
        (["123"], pa.string(), ["123", '"123"']),
        (["null"], pa.string(), ["null", '"null"']),
        (['"u17"'], pa.string(), [r'"\"u17\""']),
        (['"'], pa.string(), ['"', r'"\""']),
        (['"C:\\x"'], pa.string(), ['"C:\\x"']),
        ([123], pa.int64(), ["123", '"123"', "123.0"]),
        ([True], pa.bool_(), ["true", '"true"']),
        ([b"\x00\xff"], pa.binary(), ["00ff", "00FF", '"00ff"']),
        ([0.5], pa.float64(), ["0.5", "5e-1"]),
        ([{"a": 1, "b": "x"}], STRUCT, ['{"a": 1, "b": "x"}', '{"b": "x", "a": 1}']),
    ],
)
def test_keys_of_every_type(
    run: Run, tmp_path: Path, values: list[Any], kind: pa.DataType, texts: list[str]
) -> None:
    store = StateStore.open(str(tmp_path / "typed"), table_format="parquet")
    scheme = "flink-sql" if pa.types.is_binary(kind) else "java"
    rows = pa.table({"k": pa.array(values, kind), "v": pa.array([1], pa.int64())})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "totals", rows, key="k", hash_scheme=scheme)
    for text in texts:
        done = get(run, tmp_path / "typed", "u", text, "--output", "json")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == [{"k": json_value(values[0]), "v": 1}]


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (
            pa.timestamp("us", "UTC"),
            "2026-01-31T12:00",
            "no time zone; add Z .*: 2026-01-31T12:00:0",
        ),
        (pa.timestamp("us", "UTC"), "2026-01-31", "no time zone; add Z .*: 2026-01-31T00:00:00Z"),
        (pa.timestamp("us"), "2026-01-31T12:00Z", "has a time zone, but the type has none"),
    ],
)
def test_a_time_has_a_zone_exactly_if_its_type_has_one(
    store: StateStore, kind: pa.DataType, text: str, reason: str
) -> None:
    """This holds for keys, rows and single values, in JSON and without."""
    rows = pa.table({"k": pa.array([0], kind), "n": [1]})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k")
        checkpoint.write_keyed("u", "t", rows, key=["k", "n"])
    one, two = (store.checkpoint().manifest.keyed_entry("u", name).state for name in "st")
    ways: list[Callable[[], object]] = [
        lambda: parse_key(text, one),
        lambda: parse_key(f'"{text}"', one),
        lambda: parse_key(f'["{text}", 1]', two),
        lambda: parse_row(f'{{"k": "{text}", "n": 1}}', one),
        lambda: column_values("--set", {"k": text}, one),
        lambda: column_values("--where", {"k": f'"{text}"'}, one),
    ]
    for way in ways:
        with pytest.raises(InvalidArgumentError, match=reason) as raised:
            way()
        assert "pass " not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x", "x"),
        ('"x"', "x"),
        ("123", "123"),
        ('"123"', "123"),
        ("null", None),
        ('"null"', "null"),
        ('""', ""),
        ('"x', '"x'),
        ("a=b", "a=b"),
    ],
)
def test_a_value_has_the_same_form_as_a_key(
    store: StateStore, text: str, value: str | None
) -> None:
    """Only null differs, because a key cannot be null."""
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", [{"k": "a", "v": "b"}], key="k")
    state = store.checkpoint().manifest.keyed_entry("u", "s").state
    assert column_values("--set", {"v": text}, state) == {"v": value}
    assert parse_key(text, state) == ("null" if value is None else value,)


def test_a_value_that_does_not_fit_gets_no_advice_about_the_form(store: StateStore) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", [{"k": "a", "n": 1}], key=["k", "n"])
    state = store.checkpoint().manifest.keyed_entry("u", "s").state
    for text, has_advice in (('["a", "x"]', False), ('["a"]', True), ("a", True)):
        with pytest.raises(InvalidArgumentError, match="is not a key") as raised:
            parse_key(text, state)
        assert ("pass it as JSON" in str(raised.value)) == has_advice
    for text, has_advice in (('{"n": 1.5}', False), ('{"m": 1}', True), ("[1]", True)):
        with pytest.raises(InvalidArgumentError, match="is not a row") as raised:
            parse_row(text, state)
        assert ("pass a JSON object" in str(raised.value)) == has_advice


def test_operator_state_has_no_keys(run: Run, fraud: Path) -> None:
    options = ("--state", "orders-source/offsets", "--store", fraud)
    done = run("get", "--key", "1", *options)
    assert done.exit_code == 10
    assert "is operator state" in done.stderr


def test_values_that_json_lacks_become_text() -> None:
    assert json_value({"m": [("k", b"\x01")], "d": Decimal("1E+2"), "i": float("-inf")}) == {
        "m": [["k", "01"]],
        "d": "100",
        "i": "-Infinity",
    }


def test_a_list_as_a_key(run: Run, tmp_path: Path) -> None:
    """The key is given as JSON, in the form that the command prints."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    keys = pa.array([["a", None], []], pa.list_(pa.string()))
    rows = pa.table({"users": keys, "total": [1, 2]})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "totals", rows, key="users", max_parallelism=8)
    for key, total in ((["a", None], 1), ([], 2)):
        done = get(run, tmp_path / "store", "u", json.dumps(key), "--output", "json")
        assert json.loads(done.stdout)["rows"] == [{"users": key, "total": total}]
    assert "pass a JSON list" in get(run, tmp_path / "store", "u", "a").stderr
