"""Savepoints of real Flink with changed bytes: a typed error, or the same rows in every copy.

A changed savepoint is repacked, imported and exported. Its rows must stay the same, and every step
must end within a limit of time and memory.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import StateStoreError
from statestore.interop.flink import (
    export_savepoint,
    import_savepoint,
    repack_savepoint,
    show_savepoint,
)
from statestore.interop.flink.options import ExportSelection
from statestore.interop.flink.read.savepoint import FlinkSavepoint, open_savepoint
from tests.interop.flink.goldens import Golden
from tests.interop.flink.limits import in_time

MEMORY_BYTES = 4 << 30
GROUPS = 128
Rows = Counter[tuple[str, str, bytes, bytes]]

NAMES = (
    "2.3_heap_canonical",
    "2.3_heap_native",
    "2.3_heap_snappy",
    "2.3_rocksdb_native",
    "2.3_sql",
)

# Replacement values for lengths, counts and offsets.
EDGES = [bytes.fromhex(one) for one in ("7fffffff", "80000000", "ffffffff", "00000000", "00010000")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Return the files of each golden savepoint."""
    found = {}
    for name in NAMES:
        folder = Golden(name).unpack(tmp_path_factory.mktemp(name))
        found[name] = {one.name: one.read_bytes() for one in sorted(folder.iterdir())}
    return found


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Change some bytes of a file: flip, overwrite, copy or remove them, or truncate the file."""
    for _ in range(draw(st.integers(1, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        length = draw(st.integers(1, 64))
        how = draw(st.sampled_from(["flip", "edge", "copy", "cut", "end"]))
        if how == "flip":
            data = data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        elif how == "edge":
            data = data[:at] + draw(st.sampled_from(EDGES)) + data[at + 4 :]
        elif how == "copy":
            to = draw(st.integers(0, len(data)))
            data = data[:to] + data[at : at + length] + data[to:]
        elif how == "cut":
            data = data[:at] + data[at + length :]
        else:
            data = data[:at]
    return data


@contextmanager
def bounded() -> Iterator[None]:
    """Limit a block to some time, and to some memory beyond the process's current use."""

    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY_BYTES, limits[1]))
    try:
        with in_time():
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def entries(savepoint: FlinkSavepoint) -> Rows:
    """Return the entries of a savepoint without their key groups; raise the error of
    reading them.
    """
    found: Rows = Counter()
    for operator in savepoint.operators:
        prefix = 1 if operator.metadata.max_parallelism <= GROUPS else 2
        for entry in operator.entries():
            keys, values = entry.keys.arrow().to_pylist(), entry.values.arrow().to_pylist()
            found.update(
                (operator.metadata.id, entry.state.name, key[prefix:], value)
                for key, value in zip(keys, values, strict=True)
            )
    return found


def columns(savepoint: FlinkSavepoint) -> dict[tuple[str, str], int]:
    """Return the number of rows of each state."""
    found: Counter[tuple[str, str]] = Counter()
    for operator in savepoint.operators:
        for rows in operator.rows(as_bytes=[state.name for state in operator.states]):
            found[operator.metadata.id, rows.state.name] += len(rows)
    return dict(found)


def write(folder: Path, files: dict[str, bytes]) -> str:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(folder)


def check_repack(place: str, folder: Path) -> None:
    repack_savepoint(place, str(folder / "to"), max_parallelism=96)
    assert entries(open_savepoint(str(folder / "to"))) == entries(open_savepoint(place))


def check_round_trip(place: str, folder: Path) -> None:
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    done = import_savepoint(place, store, threads=1)
    out = export_savepoint(
        store,
        str(folder / "out"),
        selection=ExportSelection(leave_out=[one.operator for one in done.left_out]),
    )
    before, after = columns(open_savepoint(place)), columns(open_savepoint(out.savepoint))
    assert after == {key: count for key, count in before.items() if key in after}


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
@pytest.mark.parametrize("name", ["2.3_heap_snappy", "2.3_sql"])
def test_changed_bytes_give_the_same_rows_in_every_copy(
    sources: dict[str, dict[str, bytes]], name: str, data: st.DataObject
) -> None:
    change_and_check(sources[name], data)


@pytest.mark.long
@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("name", NAMES)
def test_many_changed_bytes_give_the_same_rows_in_every_copy(
    sources: dict[str, dict[str, bytes]], name: str, data: st.DataObject
) -> None:
    change_and_check(sources[name], data)


def change_and_check(files: dict[str, bytes], data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(sorted(files)))
    made = files | {file: data.draw(changed(files[file]))}
    with TemporaryDirectory(prefix="statestore-") as name, bounded():
        folder = Path(name)
        place = write(folder / "from", made)
        for check in (check_repack, check_round_trip):
            with suppress(StateStoreError):
                check(place, folder)
        with suppress(StateStoreError):
            show_savepoint(place)
        rmtree(folder / "from")
