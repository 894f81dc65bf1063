"""The text of a key that query prints names the same key in every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from statestore import Changes, StateStore
from statestore.cli.arguments import key_of, parse_key, quoted_name, state_name
from statestore.cli.output import value_text
from statestore.errors import InvalidArgumentError
from statestore.format.state import KeyedState, StateKind
from statestore.restore.lookup import key_batch
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.equality import matching_positions
from statestore.rows.python_values import display_values
from tests.support.bits import columns, kinds
from tests.support.examples import examples

Run = Callable[..., Result]


def _state(columns: dict[str, pa.Array]) -> KeyedState:
    return KeyedState(
        uid="u",
        name="s",
        kind=StateKind.VALUE,
        schema=schema_of_arrow(pa.table(columns).schema),
        key=tuple(columns),
        key_types=("Long",) * len(columns),
        max_parallelism=1,
        hash_scheme="pyflink",
    )


@examples(300)
@given(st.data(), st.booleans())
def test_a_printed_key_is_that_key(data: st.DataObject, of_duckdb: bool) -> None:
    kind = data.draw(kinds(1).filter(lambda kind: not pa.types.is_map(kind)))
    key = data.draw(columns(kind, 1, nulls=False))
    [shown] = display_values(key, of_duckdb=of_duckdb)
    text = value_text(shown)
    # A text that has the form of JSON must be passed as JSON, as 'statestore get --help' says.
    if pa.types.is_string(kind) and text.startswith('"'):
        text = json.dumps(text)
    _check(key_batch(_state({"k": key}), key_of(text)(_state({"k": key}))), {"k": key})


@examples(300)
@given(name := st.text("ab/~2F", min_size=1, max_size=6), name)
def test_a_quoted_name_is_that_name(operator: str, state: str) -> None:
    one, other = quoted_name(operator), quoted_name(state)
    assert state_name(f"{one}/{other}") == (operator, state)
    assert state_name(one) == (operator, None)
    assert state_name(f"/{other}") == (None, state)


@pytest.mark.parametrize("text", ["", "/", "a/", "a/b/c"])
def test_another_form_than_operator_and_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has several '/'|must have the form OPERATOR/STATE"):
        state_name(text)


def test_a_name_is_not_made_of_other_bytes_than_utf_8() -> None:
    assert state_name("x~C3~A9/\ufffd") == ("xé", "\ufffd")
    for text in ("x~FF/y", "x/~C3"):
        with pytest.raises(ValueError, match=r"not UTF-8; write a '~' within a name as ~7E"):
            state_name(text)


@examples(100)
@given(st.data())
def test_a_printed_key_of_two_columns_is_that_key(data: st.DataObject) -> None:
    keys = {
        name: data.draw(columns(data.draw(kinds(0), name), 1, nulls=False)) for name in ("a", "b")
    }
    shown = [display_values(key, of_duckdb=True)[0] for key in keys.values()]
    state = _state(keys)
    _check(key_batch(state, parse_key(value_text(shown), state)), keys)


def _check(parsed: pa.RecordBatch, keys: dict[str, pa.Array]) -> None:
    rows = pa.table(keys)
    found, _ = matching_positions(rows, pa.Table.from_batches([parsed]).cast(rows.schema))
    assert found.tolist() == [0], (parsed.to_pydict(), keys)


@pytest.mark.parametrize(
    "text",
    ["10000-02-30", "0000-01-01", "010000-01-01", "5881580-07-12", "infinite", "10000-01-01T00:00"],
)
def test_text_that_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a key of"):
        parse_key(text, _state({"k": pa.array([], pa.date32())}))


@pytest.mark.parametrize(
    "text",
    [
        "10000-01-01 00:00:00+00",
        "10000-01-01",
        "10000-01-01 24:00:00",
        "10000-01-01 00:00:00.1234567",
        "294247-01-10 04:00:54.775808",
    ],
)
def test_text_that_is_no_local_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a key of"):
        parse_key(text, _state({"k": pa.array([], pa.timestamp("us"))}))


KEYS: dict[str, pa.Array] = {
    "date": pa.array([2**31 - 1, -(2**31) + 1, 2_932_897, -719_163, -800_000, 0]).cast(pa.int32()),
    "timestamp": pa.array(
        [2**63 - 1, -(2**63) + 1, 253_402_300_800_000_000, -62_135_596_800_000_001, 0]
    ),
}
TYPES = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "zoned": pa.timestamp("us", "UTC"),
}


@pytest.mark.long_cases("date", "timestamp")
@pytest.mark.parametrize("name", TYPES)
def test_far_keys_in_every_command(tmp_path: Path, run: Run, name: str) -> None:
    raw = KEYS.get(name, KEYS["timestamp"])
    keys = raw.view(TYPES[name])
    numbers = list(range(len(keys)))
    store = StateStore.open(str(tmp_path), table_format="parquet")
    with store.snapshot(parallelism=1) as new:
        new.write_keyed("u", "s", pa.table({"k": keys, "t": keys, "v": numbers}), key="k")
    with store.snapshot(parallelism=1) as new:
        changed = pa.table({"k": keys, "t": keys, "v": [100 + number for number in numbers]})
        new.write_changes("u", "s", Changes(upserts=changed))

    def ask(*arguments: str) -> Any:
        done = run(*arguments, "--store", tmp_path, "--output", "json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    texts = [row[0] for row in ask("query", "SELECT k, v FROM s ORDER BY v")["rows"]]
    assert ("infinity" in texts, "-infinity" in texts) == (True, True)
    place = ("--state", "u/s")
    for number, text in zip(numbers, texts, strict=True):
        [row] = ask("get", *place, "--key", text)["rows"]
        assert (row["v"], row["k"]) == (100 + number, row["t"])
        [of_state] = ask("get", "--key", text)["found"]["states"]
        assert of_state["rows"] == [row]
        history = ask("get", "--history", *place, "--key", text)["history"]
        assert [one["rows"][0]["v"] for one in history] == [number, 100 + number]
        assert ask("edit", *place, "--delete", text, "--dry-run")["deleted"] == 1
        assert ask("edit", *place, "--key", text, "--set", f"t={text}", "--dry-run")["put"] == 0
        # The date that 'infinity' stands for is the same key.
        [again] = ask("get", *place, "--key", row["k"])["rows"]
        assert again == row
    assert ask("diff", "1", "2")["states"][0]["changed"] == len(keys)
    # Old files have the key until 'statestore gc' deletes them, which forget reports as a problem.
    assert run("forget", "--column", f"k={texts[0]}", "--store", tmp_path).exit_code == 1
    ask("forget", "--state", "u", "--key", texts[1])
    left = store.restore().keyed("u", "s").to_arrow()["v"].to_pylist()
    assert sorted(left) == [100 + number for number in numbers[2:]]
