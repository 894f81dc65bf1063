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
from statestore.restore.row_files import json_value
from statestore.snapshot.write_options import KeyedOptions

Run = Callable[..., Result]


def get(run: Run, store: Path, uid: str, *arguments: str) -> Result:
    options = ("--operator", uid, "--state", "totals", "--store", store)
    return run("get", *options, *arguments)


def test_a_string_key(run: Run, fraud: Path) -> None:
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
    done = get(run, fraud, uid, "--output", "json", "--", key, "1")
    document = json.loads(done.stdout)
    assert document["rows"] == rows
    assert (document["checkpoint_id"], document["operator"], document["state"]) == (
        1,
        uid,
        "totals",
    )


def test_a_negative_key_is_explained(run: Run, fraud: Path) -> None:
    done = get(run, fraud, "totals-by-card", "-5")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: put '--' before a key that begins with '-': -- -5\n")


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
        ([date(2026, 1, 31)], pa.date32(), ["2026-01-31"]),
        (
            [datetime(2026, 1, 31, 12, tzinfo=UTC)],
            pa.timestamp("us", "UTC"),
            ["2026-01-31T12:00:00Z", "2026-01-31T13:00+01:00", "2026-01-31T12:00"],
        ),
        ([datetime(2026, 1, 31, 12)], pa.timestamp("us"), ["2026-01-31T12:00:00"]),
        ([Decimal("1.50")], pa.decimal128(10, 2), ["1.5", "1.50"]),
        ([True], pa.bool_(), ["true"]),
        ([b"\x00\xff"], pa.binary(), ["00ff", "00FF"]),
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
        checkpoint.write_keyed(
            "u", "totals", rows, key="k", options=KeyedOptions(hash_scheme=scheme)
        )
    for text in texts:
        done = get(run, tmp_path / "typed", "u", "--output", "json", text)
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == [{"k": json_value(values[0]), "v": 1}]


def test_operator_state_has_no_keys(run: Run, fraud: Path) -> None:
    options = ("--operator", "orders-source", "--state", "offsets", "--store", fraud)
    done = run("get", "1", *options)
    assert done.exit_code == 10
    assert "is operator state" in done.stderr


def test_values_in_json() -> None:
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
    assert "pass it as JSON" in get(run, tmp_path / "store", "u", "a").stderr
