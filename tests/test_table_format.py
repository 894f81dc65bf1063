"""A store remembers its table format: opening it needs no argument, and another one is refused."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from jobs.snapshot import snapshot
from statestore.catalog.catalog import Catalog
from statestore.errors import InvalidArgumentError, MalformedManifestError
from statestore.format.documents import document_bytes
from statestore.storage import LocalStorage
from statestore.store import StateStore
from tests.support.stores import file_bytes

GOLDEN = sorted(
    file.parent for file in (Path(__file__).parent / "golden").glob("*_v*/**/statestore.json")
)
OLDER = [path for path in GOLDEN if "table_format" not in (path / "statestore.json").read_text()]
OTHER = "created with table_format='parquet' .* opened with table_format='delta'; omit table_format"


def take(store: StateStore, n: int = 1) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", [{"k": "a", "n": n}], key="k", max_parallelism=4)


def made(path: Path, table_format: str) -> StateStore:
    """Return a store of that format, with a checkpoint."""
    take(StateStore.open(str(path), table_format=table_format))
    return StateStore.open(str(path))


def remembered(path: Path) -> str | None:
    document = json.loads((path / "statestore.json").read_bytes())
    found: str | None = document.get("table_format")
    return found


def forget(path: Path) -> None:
    """Make ``statestore.json`` that of an older release."""
    file = path / "statestore.json"
    document = json.loads(file.read_bytes())
    del document["table_format"], document["sha256"]
    file.write_bytes(document_bytes(document))


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_store_is_opened_again_without_argument(tmp_path: Path, table_format: str) -> None:
    store = made(tmp_path / "s", table_format)
    take(store, 2)
    assert remembered(tmp_path / "s") == store.table_format == table_format
    assert [entry.table.format for entry in store.checkpoint(2).manifest.entries] == [table_format]


def test_a_store_that_is_not_there_is_delta_unless_it_is_said(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "s"))
    assert store.table_format == "delta"
    assert StateStore.open(str(tmp_path / "s"), table_format="parquet").table_format == "parquet"
    assert not (tmp_path / "s").exists()


def test_another_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    made(tmp_path / "s", "parquet")
    before = file_bytes(tmp_path / "s")
    other = StateStore.open(str(tmp_path / "s"), table_format="delta")
    with pytest.raises(InvalidArgumentError, match=OTHER):
        take(other)
    with pytest.raises(InvalidArgumentError, match=OTHER):
        _ = other.table_format
    assert file_bytes(tmp_path / "s") == before
    assert other.restore().keyed("u", "s").get("a") == [{"k": "a", "n": 1}]  # reading takes either


def test_of_two_creators_one_wins_and_the_other_hears_it(tmp_path: Path) -> None:
    """The other one comes between the look and the put."""

    class Late(LocalStorage):
        looked = False

        def read(self, path: str) -> bytes:
            try:
                return super().read(path)
            finally:
                if not self.looked and path == "statestore.json":
                    self.looked = True
                    _create(str(tmp_path / "s"), "delta")

    late = Late(str(tmp_path / "s"))
    with pytest.raises(InvalidArgumentError, match=r"'delta' .* table_format='parquet'"):
        take(StateStore.open(late, table_format="parquet"))
    assert sorted(file_bytes(tmp_path / "s")) == ["statestore.json"]


def _create(path: str, table_format: str) -> str:
    catalog = Catalog.open(LocalStorage(path), create=True, table_format=table_format)
    try:
        return catalog.table_format(table_format)
    except InvalidArgumentError:
        return "refused"


@pytest.mark.slow
def test_processes_that_create_a_store_agree_on_its_format(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for number in range(20):
            path = tmp_path / str(number)
            both = [pool.submit(_create, str(path), form) for form in ("delta", "parquet")]
            answers = {one.result() for one in both}
            assert answers == {remembered(path), "refused"}


@pytest.mark.parametrize("golden", OLDER, ids=lambda path: path.name)
def test_an_older_store_goes_by_its_tables(golden: Path, tmp_path: Path) -> None:
    """It has no recorded format, so it takes the passed one, or else the newest readable one."""
    path = Path(shutil.copytree(golden, tmp_path / "s"))
    assert remembered(path) is None
    store = StateStore.open(str(path))
    assert {e.table.format for e in store.checkpoint().manifest.entries} == {store.table_format}
    for said in ("delta", "parquet"):
        assert StateStore.open(str(path), table_format=said).table_format == said


def test_an_older_store_is_written_without_argument(tmp_path: Path) -> None:
    store = made(tmp_path / "s", "parquet")
    take(store, 2)
    forget(tmp_path / "s")
    (tmp_path / "s/checkpoints/0000000002.json").write_bytes(b"damaged")
    assert StateStore.open(store.url).table_format == "parquet"  # of the one before
    shutil.rmtree(tmp_path / "s/checkpoints")
    assert StateStore.open(store.url).table_format == "delta"  # of none


def test_a_format_that_is_no_text_is_damage(tmp_path: Path) -> None:
    made(tmp_path / "s", "parquet")
    document = {"format": "statestore", "format_version": 1, "store_id": "s", "table_format": 1}
    (tmp_path / "s/statestore.json").write_bytes(document_bytes(document))
    with pytest.raises(MalformedManifestError, match=r"\$\.table_format: Expected `str .*`"):
        _ = StateStore.open(str(tmp_path / "s")).table_format


def test_a_copy_and_a_fork_remember_what_the_source_does(tmp_path: Path) -> None:
    """Unless the target was opened with another one; a target that is there keeps its own."""
    store = made(tmp_path / "s", "parquet")
    store.maintenance.copy("latest", str(tmp_path / "copy"))
    store.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    store.maintenance.copy("latest", StateStore.open(str(tmp_path / "said"), table_format="delta"))
    made(tmp_path / "there", "delta")
    store.maintenance.copy("latest", str(tmp_path / "there"))
    found = {name: remembered(tmp_path / name) for name in ("copy", "fork", "said", "there")}
    assert found == {"copy": "parquet", "fork": "parquet", "said": "delta", "there": "delta"}
    take(StateStore.open(str(tmp_path / "copy")), 2)
    take(StateStore.open(str(tmp_path / "fork")), 2)


@pytest.mark.slow
def test_a_copy_of_an_older_store_is_of_its_tables_format(tmp_path: Path) -> None:
    for golden in GOLDEN:
        source, copy = StateStore.open(str(golden)), tmp_path / golden.name
        source.maintenance.copy("latest", str(copy))
        assert remembered(copy) == source.table_format


def test_a_copy_into_a_store_opened_with_another_format_is_refused(tmp_path: Path) -> None:
    store = made(tmp_path / "s", "parquet")
    made(tmp_path / "there", "parquet")
    before = file_bytes(tmp_path / "there")
    with pytest.raises(InvalidArgumentError, match=OTHER):
        store.maintenance.copy(
            "latest", StateStore.open(str(tmp_path / "there"), table_format="delta")
        )
    assert file_bytes(tmp_path / "there") == before


def test_the_snapshot_job_hears_of_another_format_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("jobs.snapshot.session")
    monkeypatch.setenv("STATESTORE_TABLE_FORMAT", "delta")
    made(tmp_path / "s", "parquet")
    settings = tmp_path / "f.toml"
    settings.write_text("""
parallelism = 2
keyed = [{operator = "u", state = "s", key = ["k"], source = {format = "parquet", path = "p"}}]
""")
    arguments = [str(settings), "--store", str(tmp_path / "s")]
    assert snapshot.main(arguments, standalone_mode=False) == 2
    assert re.search(OTHER, capsys.readouterr().err)
