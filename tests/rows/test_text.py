"""Text that is not UTF-8 is refused on write, with its column, row and bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import InvalidArgumentError
from statestore.rows.text import refuse_invalid_text
from tests.support.examples import examples
from tests.support.writers import opened

BAD = pa.array([b"ok", b"caf\xe9"], pa.binary()).view(pa.string())
NESTED = {
    "plain": BAD,
    "large": pa.array([b"ok", b"caf\xe9"], pa.large_binary()).view(pa.large_string()),
    "list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BAD),
    "struct": pa.StructArray.from_arrays([BAD], ["a"]),
    "map": pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["x", "y"]), BAD),
    "map key": pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BAD, pa.array([1, 2])),
    "dictionary": BAD.dictionary_encode(),
}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return opened(str(tmp_path / "store"))


@pytest.mark.parametrize("values", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("as_changes", [False, True])
def test_it_is_refused_at_any_depth(store: StateStore, values: pa.Array, as_changes: bool) -> None:
    rows = pa.table({"k": ["a", "b"], "v": values})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows.slice(0, 1), key="k")
    checkpoint = store.snapshot(parallelism=1).__enter__()
    write = checkpoint.write_changes if as_changes else checkpoint.write_keyed
    with pytest.raises(InvalidArgumentError, match=r"column 'v' of .* not UTF-8.* of k='b'"):
        write("u", "s", rows, key="k")
    checkpoint.__exit__(RuntimeError, RuntimeError(), None)
    assert store.checkpoints() == (1,)


def test_a_key_is_refused(store: StateStore) -> None:
    rows = pa.table({"k": BAD, "v": [1, 2]})
    for key in ("k", ["v", "k"]):
        with (
            pytest.raises(InvalidArgumentError, match="UTF-8"),
            store.snapshot(parallelism=1) as new,
        ):
            new.write_keyed("u", "s", rows, key=key)


@pytest.mark.parametrize("mode", ["split", "union", "broadcast"])
def test_an_element_is_refused(store: StateStore, mode: str) -> None:
    place = {} if mode == "broadcast" else {"subtask": [0, 0], "position": [0, 1]}
    elements = pa.table({**place, "x": BAD})
    with pytest.raises(InvalidArgumentError, match=r"column 'x' of .* not UTF-8: b'caf\\xe9'"):  # noqa: SIM117
        with store.snapshot(parallelism=1) as checkpoint:
            getattr(checkpoint, f"write_{mode}")("u", "e", elements)


@examples(100)
@given(st.lists(st.binary(max_size=6), min_size=1, max_size=30), st.integers(0, 3))
def test_only_bytes_that_python_decodes_are_accepted(values: list[bytes], skipped: int) -> None:
    column = pa.array(values, pa.binary()).view(pa.string()).slice(min(skipped, len(values) - 1))
    batch = pa.record_batch({"n": pa.array(range(len(column))), "v": column})
    left = values[len(values) - len(column) :]
    wrong = [place for place, value in enumerate(left) if not _is_text(value)]
    if not wrong:
        refuse_invalid_text(batch, "rows", ["n"])
        return
    with pytest.raises(InvalidArgumentError, match=rf"of n={wrong[0]}\."):
        refuse_invalid_text(batch, "rows", ["n"])


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
