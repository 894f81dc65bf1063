"""Flink savepoints and checkpoints in a bucket: show, import, export and repack."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import StateStore
from statestore.cli.main import cli
from statestore.errors import DamagedFileError
from statestore.interop.flink import (
    export_savepoint,
    import_savepoint,
    open_savepoint,
    repack_savepoint,
    show_savepoint,
)
from statestore.interop.flink.options import ExportSelection, SavepointAccess
from statestore.storage.s3 import S3Storage
from tests.interop.flink.goldens import Golden
from tests.servers.cluster_demo import s3_environment
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.services, pytest.mark.slow]

SOME = ["by_long", "sums"]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Golden("2.3_rocksdb_canonical").unpack(tmp_path_factory.mktemp("local"))


def put(s3: S3Server, url: str, folder: Path) -> str:
    """Put the files of a folder into the bucket."""
    files = S3Storage(url, s3.options)
    for path in folder.rglob("*"):
        if path.is_file():
            files.put_if_absent(path.relative_to(folder).as_posix(), path.read_bytes())
    return url


def rows(place: str, s3: S3Server | None, moved: dict[str, str] | None = None) -> Counter[str]:
    """Return the number of rows of each state, by key group."""
    options = None if s3 is None else s3.options
    savepoint = open_savepoint(place, access=SavepointAccess(storage_options=options, moved=moved))
    found: Counter[str] = Counter()
    for name in SOME:
        for row in savepoint.operator(name).rows():
            found[f"{name} {row.state.name} {row.key_group}"] += len(row)
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "scheme",  # the other tests have URLs with s3
    ["s3a", "s3", "s3p"],
)
def test_show(s3: S3Server, url: str, local: Path, scheme: str) -> None:
    place = f"{scheme}{put(s3, url, local).removeprefix('s3')}/_metadata"
    found = show_savepoint(place, access=SavepointAccess(storage_options=s3.options))
    assert found.operators == show_savepoint(str(local)).operators


@pytest.mark.long
def test_import_export_and_repack(s3: S3Server, url: str, local: Path) -> None:
    place = put(s3, f"{url}/savepoint", local)
    store = StateStore.open(f"{url}/store", table_format="parquet", storage_options=s3.options)
    done = import_savepoint(
        place, store, operators=SOME, access=SavepointAccess(storage_options=s3.options)
    )
    assert {one.operator for one in done.record.states} == set(SOME)
    others = {state.operator for state in done.left_out}
    exported = export_savepoint(
        store,
        f"{url}/exported",
        access=SavepointAccess(storage_options=s3.options),
        selection=ExportSelection(leave_out=others),
    )
    assert exported.savepoint.startswith(url)
    assert rows(f"{url}/exported", s3) == rows(str(local), None)
    made = f"{url}/repacked"
    repack_savepoint(
        place, made, max_parallelism=720, access=SavepointAccess(storage_options=s3.options)
    )
    assert rows(made, s3).total() == rows(str(local), None).total()


@pytest.mark.long
def test_the_command_takes_urls(
    s3: S3Server, url: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (s3_environment(s3) | {"AWS_ALLOW_HTTP": "true"}).items():
        monkeypatch.setenv(name, value)
    place = put(s3, f"{url}/savepoint", local)
    run = CliRunner()
    shown = run.invoke(cli, ["flink", "show", place, "--output", "json"])
    assert json.loads(shown.stdout)["savepoint"] == place
    words = ["flink", "import", place, "--store", f"{url}/store", "--operator", "sums"]
    done = run.invoke(cli, words)
    assert done.exit_code == 0, done.stderr
    words = ["flink", "export", f"{url}/exported", "--store", f"{url}/store"]
    others = {
        state.operator for state in StateStore.open(f"{url}/store").checkpoint().manifest.left_out
    }
    words += [word for name in others for word in ("--leave-out", name)]
    assert run.invoke(cli, words).exit_code == 0
    words = ["flink", "repack", place, f"{url}/repacked", "--max-parallelism", "720"]
    assert run.invoke(cli, words).exit_code == 0


@pytest.mark.long
def test_paths_in_a_checkpoint_can_be_in_a_bucket(s3: S3Server, url: str, tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_incremental")
    place = golden.unpack(tmp_path)
    put(s3, url, tmp_path)
    there = f"{url}/{place.relative_to(tmp_path).as_posix()}"
    before = str(golden.about["written_at"])
    assert rows(there, s3, {before: url}) == rows(str(place), None, {before: str(tmp_path)})


def test_a_missing_or_truncated_object_is_named(s3: S3Server, url: str, local: Path) -> None:
    place = put(s3, url, local)
    files = S3Storage(url, s3.options)
    path = max(local.iterdir(), key=lambda one: one.stat().st_size if "_" not in one.name else 0)
    files.delete(path.name)
    found = (
        operator.problem
        for operator in open_savepoint(
            place, access=SavepointAccess(storage_options=s3.options)
        ).operators
    )
    (problem,) = (one for one in found if one is not None)
    assert problem.startswith(
        f"the file {url}/{path.name}, which the savepoint references, does not exist"
    )
    files.put_if_absent(path.name, path.read_bytes()[:-1])
    savepoint = open_savepoint(place, access=SavepointAccess(storage_options=s3.options))
    (damaged,) = (operator for operator in savepoint.operators if operator.is_damaged)
    with pytest.raises(DamagedFileError, match=f"{url}/{path.name} has"):
        list(damaged.rows())
