"""Checkpoint ids: when a checkpoint becomes visible, and why no id is reused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from statestore import StateStore
from statestore.catalog.catalog import Catalog
from statestore.catalog.holds import Savepoint
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
    StorageError,
    StoreNotFoundError,
)
from statestore.format.documents import document_bytes, seal_document
from statestore.format.manifest import Manifest, Writer
from statestore.format.names import CHECKPOINTS, manifest_path, tombstone_path
from statestore.storage import LocalStorage, Storage
from tests.support.stores import opened
from tests.support.writers import ROWS, take


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return LocalStorage(str(tmp_path / "store"))


@pytest.fixture
def catalog(storage: Storage) -> Catalog:
    return Catalog.open(storage, create=True)


def manifest(checkpoint_id: int, *, token: str = "t", name: str = "host:1") -> Manifest:
    return Manifest(
        store_id="s",
        checkpoint_id=checkpoint_id,
        parallelism=2,
        started_at_ms=1,
        created_at_ms=2,
        writer=Writer("0.1", name, token),
        keyed=(),
        operator=(),
    )


def commit(catalog: Catalog, *ids: int) -> None:
    for checkpoint_id in ids:
        catalog.commit(manifest(checkpoint_id))


# --- creating and opening a store -----------------------------------------------------------------


def test_a_store_is_created_once_and_opened_again(storage: Storage) -> None:
    """The store keeps its id."""
    made = Catalog.open(storage, create=True)
    assert Catalog.open(storage, create=False).store_id == made.store_id
    assert Catalog.open(storage, create=True).store_id == made.store_id


def test_concurrent_creators_agree_on_one_store(storage: Storage) -> None:
    """One of several concurrent creators writes the store's id, and the others use it."""
    together = Barrier(8)

    def create(_: int) -> str:
        together.wait()
        return Catalog.open(storage, create=True).store_id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(create, range(8)))) == 1


def test_a_missing_store_is_not_found_and_not_created(storage: Storage) -> None:
    """Reading creates nothing."""
    with pytest.raises(StoreNotFoundError, match=storage.url):
        Catalog.open(storage, create=False)
    assert not Path(storage.url).exists()


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("below", ["", "/below"])
def test_a_file_is_not_a_store(tmp_path: Path, create: bool, below: str) -> None:
    """The message says that the path is a file."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreNotFoundError, match="is a file"):
        Catalog.open(LocalStorage(f"{tmp_path}/file{below}"), create=create)


@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/0000000001.json", "folder/deep/down"])
def test_no_store_is_created_among_other_files(storage: Storage, name: str) -> None:
    """A home folder, or a store that lost its first file, is left unchanged."""
    storage.put_if_absent(name, b"x")
    with pytest.raises(InvalidArgumentError, match=r"contains other files but no statestore\.json"):
        Catalog.open(storage, create=True)
    assert storage.list("") == (name,)


def test_a_store_is_created_in_a_folder_with_only_hidden_files(storage: Storage) -> None:
    """Hidden files from desktops and from concurrent creators are ignored."""
    Path(storage.url).mkdir()
    (Path(storage.url) / ".DS_Store").write_text("x")
    Catalog.open(storage, create=True)
    assert sorted(path.name for path in Path(storage.url).iterdir()) == [
        ".DS_Store",
        "statestore.json",
    ]
    assert Catalog.open(storage, create=False).checkpoint_ids() == ()


def test_an_unwritable_location_is_a_storage_error() -> None:
    """The message names the location."""
    with pytest.raises(StorageError, match="/proc/store"):
        Catalog.open(LocalStorage("/proc/store"), create=True)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, r"at \$: Expected `object`, got `array`"),
        (b'{"x": 1}', r"at \$: .* required field `format`"),
        (b'{"format": "other", "format_version": 1}', r"at \$\.format: expected 'statestore'"),
        (b'{"format": 1}', r"at \$\.format: Expected `str`"),
        (b'{"format": "statestore"}', "required field `format_version`"),
        (b'{"format": "statestore", "format_version": -1}', r"\$\.format_version"),
        (b'{"format": "statestore", "format_version": true}', r"\$\.format_version"),
        (b'{"format": "statestore", "format_version": 1}', "required field `store_id`"),
        (b'{"format": "statestore", "format_version": 1, "store_id": 7}', r"at \$\.store_id"),
    ],
)
def test_a_broken_store_file_is_named(storage: Storage, document: bytes, message: str) -> None:
    """If the document is readable, the message also gives the position of the error."""
    storage.put_if_absent("statestore.json", seal_document(document.removesuffix(b"}")))
    with pytest.raises(MalformedManifestError, match=message) as caught:
        Catalog.open(storage, create=True)
    assert f"{storage.url}/statestore.json" in str(caught.value)


def test_a_store_of_a_newer_release_asks_for_an_upgrade(storage: Storage) -> None:
    """A newer release can have changed anything, so the reader stops."""
    document = {"format": "statestore", "format_version": 2, "store_id": "s"}
    storage.put_if_absent("statestore.json", document_bytes(document))
    with pytest.raises(FormatVersionError, match=r"format version 2.*Upgrade"):
        Catalog.open(storage, create=True)


# --- ids ------------------------------------------------------------------------------------------


def test_ids_grow_by_one(catalog: Catalog) -> None:
    """I6: the first id is 1."""
    for expected in (1, 2, 3):
        assert catalog.next_id() == expected
        commit(catalog, expected)
        assert catalog.checkpoint_ids()[-1] == expected
    assert catalog.checkpoint_ids() == (1, 2, 3)


def test_a_tombstone_hides_a_checkpoint_permanently(catalog: Catalog) -> None:
    """I4, I6: the id is not reused, even if it was the newest."""
    commit(catalog, 1, 2)
    catalog.storage.put_if_absent(tombstone_path(2), b"")
    assert catalog.checkpoint_ids() == (1,)
    assert catalog.next_id() == 3
    with pytest.raises(
        CheckpointNotFoundError, match=r"no checkpoint 2 in .*; the store has the checkpoints 1"
    ):
        catalog.checkpoint(2)


def test_a_tombstone_without_a_manifest_reserves_its_id(catalog: Catalog) -> None:
    """I6: a stalled writer cannot commit under this id later."""
    catalog.storage.put_if_absent(tombstone_path(7), b"")
    assert catalog.next_id() == 8
    assert catalog.checkpoint_ids() == ()


@pytest.mark.parametrize(
    "name",
    [
        "0000000099.json.tmp",
        "0000000099.JSON",
        "000000099.json",
        "00000000099.json",
        "0000000000.json",
        "٠٠٠٠٠٠٠٠٩٩.json",
        "backup/0000000099.json",
        "0000000099.json/part",
        "-000000099.json",
        "README",
    ],
)
def test_other_files_next_to_manifests_are_ignored(catalog: Catalog, name: str) -> None:
    """I4: only a file with the exact name makes a checkpoint."""
    commit(catalog, 1)
    catalog.storage.put_if_absent(f"checkpoints/{name}", b"junk")
    assert catalog.checkpoint_ids() == (1,)
    assert catalog.next_id() == 2
    assert catalog.checkpoint("latest").checkpoint_id == 1


# --- commit ---------------------------------------------------------------------------------------


def test_the_second_writer_of_an_id_learns_who_won(catalog: Catalog) -> None:
    """I4: the winner's manifest stays."""
    catalog.commit(manifest(1, token="a", name="first-host:17"))
    with pytest.raises(CommitConflictError, match=r"checkpoint 1 .* first-host:17 .*again"):
        catalog.commit(manifest(1, token="b"))
    assert catalog.checkpoint(1).manifest.writer.token == "a"


def test_a_conflict_with_an_unreadable_manifest_is_still_a_conflict(catalog: Catalog) -> None:
    """The second writer gets a conflict, whatever the winner wrote."""
    catalog.storage.put_if_absent(manifest_path(1), b"junk")
    with pytest.raises(CommitConflictError, match="another writer"):
        catalog.commit(manifest(1))


def test_a_repeated_commit_of_the_same_writer_succeeds(catalog: Catalog) -> None:
    """A client that lost the response to its PUT and retried must recognize its own manifest."""
    catalog.commit(manifest(1))
    catalog.commit(manifest(1))
    assert catalog.checkpoint_ids() == (1,)


def test_a_commit_under_a_tombstone_fails(catalog: Catalog) -> None:
    """I4, I6: the PUT succeeds, but the checkpoint would never be visible."""
    catalog.storage.put_if_absent(tombstone_path(1), b"")
    for _ in range(2):
        with pytest.raises(CommitConflictError, match=r"checkpoint 1 .* has a tombstone.*new id"):
            catalog.commit(manifest(1))
    assert catalog.checkpoint_ids() == ()


def test_a_taken_or_skipped_id_is_refused_before_any_work(
    catalog: Catalog,
) -> None:
    """I6: the error names the writer that has the id, or the newest id."""
    commit(catalog, 1, 2, 3)
    catalog.refuse_taken(4)
    catalog.storage.put_if_absent(tombstone_path(3), b"")
    for checkpoint_id, message in {
        2: "checkpoint 2 .* committed by writer host:1",
        3: "checkpoint 3 .* has a tombstone",
    }.items():
        with pytest.raises(CommitConflictError, match=message):
            catalog.refuse_taken(checkpoint_id)
    catalog.storage.put_if_absent(manifest_path(9), b"junk")
    with pytest.raises(CommitConflictError, match=r"checkpoint 9 .* another writer"):
        catalog.refuse_taken(4)


# --- load -----------------------------------------------------------------------------------------


def test_a_checkpoint_is_loaded_by_number_text_or_as_the_latest(catalog: Catalog) -> None:
    """Options of a Spark read are strings."""
    commit(catalog, 1, 2)
    assert catalog.checkpoint(1).manifest == catalog.checkpoint("1").manifest == manifest(1)
    assert catalog.checkpoint("latest").manifest == manifest(2)


def test_a_checkpoint_that_was_found_is_not_searched_again(catalog: Catalog) -> None:
    """Not even when it has expired and another one is the latest; ``name`` is its savepoint."""
    catalog = Catalog(catalog.storage, manifest(1).store_id)
    commit(catalog, 1)
    catalog.holds.put_savepoint(Savepoint("kept", 1, 0), visible=lambda: None)
    found = [catalog.checkpoint(reference) for reference in (1, "1", "latest", "kept")]
    assert [one.name for one in found] == [None, None, None, "kept"]
    assert [repr(one) for one in found[2:]] == ["Checkpoint(1)", "Checkpoint(1, 'kept')"]
    commit(catalog, 2)
    catalog.expire(1, b"tombstone")
    assert [catalog.checkpoint(one) for one in found] == found


def test_a_checkpoint_that_was_found_must_still_be_kept_to_build_on_it(catalog: Catalog) -> None:
    """A new checkpoint would name files that ``gc`` may have deleted."""
    catalog = Catalog(catalog.storage, manifest(1).store_id)
    commit(catalog, 1, 2)
    catalog.holds.put_savepoint(Savepoint("kept", 1, 0), visible=lambda: None)
    found = catalog.checkpoint(1)
    assert catalog.checkpoint(found, read_lists=True) == found
    catalog.expire(1, b"tombstone")
    assert catalog.checkpoint(found, read_lists=True) == found
    catalog.holds.delete_savepoint("kept")
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint 1 in .* the checkpoints 2"):
        catalog.checkpoint(found, read_lists=True)


def test_a_checkpoint_of_another_store_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    """Its number may be another checkpoint here."""
    commit(catalog, 1)
    other = Catalog.open(LocalStorage(str(tmp_path / "other")), create=True)
    for find in (other.checkpoint, other.resolve):
        with pytest.raises(InvalidArgumentError, match=r"belongs to store .* pass a checkpoint of"):
            find(catalog.checkpoint(1))


@pytest.mark.parametrize("checkpoint", ["newest", "1.0", " 1", "-1"])
def test_text_that_is_not_a_number_is_a_missing_savepoint(
    catalog: Catalog, checkpoint: str
) -> None:
    """The text is not converted to a number."""
    commit(catalog, 1)
    with pytest.raises(
        CheckpointNotFoundError,
        match=r"no savepoint .* existing savepoints: none.* the store has the checkpoints 1",
    ):
        catalog.checkpoint(checkpoint)


@pytest.mark.parametrize("checkpoint", ["", "١", True, 1.0, None, [1]])
def test_an_invalid_checkpoint_name_is_refused(catalog: Catalog, checkpoint: object) -> None:
    """The value is not converted to a number."""
    commit(catalog, 1)
    with pytest.raises(InvalidArgumentError, match="a checkpoint must be a number, 'latest'"):
        catalog.checkpoint(checkpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize("checkpoint", [0, -1, 13, 10**12, "13"])
def test_a_missing_checkpoint_lists_the_existing_ones(
    catalog: Catalog, checkpoint: int | str
) -> None:
    """The message lists the last ten."""
    commit(catalog, *range(1, 11))
    with pytest.raises(CheckpointNotFoundError, match="the checkpoints 1, 2, 3, 4, 5, 6, 7, 8, 9"):
        catalog.checkpoint(checkpoint)
    commit(catalog, 11)
    with pytest.raises(
        CheckpointNotFoundError,
        match="the store has the checkpoints … 2, 3, 4, 5, 6, 7, 8, 9, 10, 11",
    ):
        catalog.checkpoint(checkpoint)


def test_an_empty_store_has_no_checkpoint(catalog: Catalog) -> None:
    """This holds for a number and for ``latest``."""
    with pytest.raises(CheckpointNotFoundError, match="the store has no checkpoints"):
        catalog.checkpoint(1)
    with pytest.raises(CheckpointNotFoundError, match="has no checkpoint yet"):
        catalog.checkpoint("latest")


def test_the_last_committed_manifest_is_not_parsed_again(catalog: Catalog) -> None:
    """Unless the document in the store is another one."""
    first, second = manifest(1), manifest(2)
    catalog.commit(first)
    assert catalog.checkpoint(1).manifest is first
    catalog.commit(second)
    assert catalog.checkpoint(2).manifest is second
    assert catalog.checkpoint(1).manifest == first
    catalog.storage.delete(manifest_path(2))
    other = Catalog(LocalStorage(catalog.storage.url), catalog.store_id)
    other.commit(replace(second, parallelism=7))
    assert catalog.checkpoint(2).manifest.parallelism == 7


def test_a_manifest_under_another_number_is_refused(catalog: Catalog) -> None:
    """Somebody copied the file, and a restore would use the wrong content."""
    commit(catalog, 1)
    copied = catalog.storage.read(manifest_path(1))
    catalog.storage.put_if_absent(manifest_path(2), copied)
    with pytest.raises(MalformedManifestError, match=r"0000000002\.json at \$\.checkpoint_id"):
        catalog.checkpoint(2)


def test_a_store_can_be_copied_as_a_whole(catalog: Catalog, tmp_path: Path) -> None:
    """No file in it contains its location."""
    commit(catalog, 1)
    Path(catalog.storage.url).rename(tmp_path / "elsewhere")
    moved = Catalog.open(LocalStorage(str(tmp_path / "elsewhere")), create=False)
    assert moved.checkpoint(1).manifest == replace(manifest(1))


class DeletingStorage(LocalStorage):
    """A folder whose probe file is deleted during the test of the folder.

    With ``makes`` another process also creates a store there at that moment.
    """

    def __init__(self, url: str, makes: bool) -> None:
        super().__init__(url)
        self.makes, self.meanwhile = makes, True

    def read(self, name: str) -> bytes:
        if name.startswith(".probe") and self.meanwhile:
            self.meanwhile = False
            self.delete(name)
            if self.makes:
                Catalog.open(LocalStorage(self.url), create=True)
        return super().read(name)

    def is_empty(self) -> bool:
        return True


def test_a_creator_uses_the_store_that_another_process_created(tmp_path: Path) -> None:
    made = Catalog.open(DeletingStorage(str(tmp_path / "a"), True), create=True)
    other = Catalog.open(LocalStorage(str(tmp_path / "a")), create=False)
    assert made.store_id == other.store_id


def test_a_deleted_probe_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"another process deleted .*run the command again"):
        Catalog.open(DeletingStorage(str(tmp_path / "a"), False), create=True)
    Catalog.open(LocalStorage(str(tmp_path / "a")), create=True)


class ListingStorage(LocalStorage):
    """A folder that records which of its folders were listed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.listed_folders: list[str] = []

    def list(self, folder: str) -> tuple[str, ...]:
        self.listed_folders.append(folder)
        return super().list(folder)


@pytest.mark.parametrize("batch", [None, "a job"])
def test_a_writer_lists_the_checkpoints_only_for_its_first_one(url: str, batch: str | None) -> None:
    """The requests of a later checkpoint do not depend on the number of kept ones."""
    storage = ListingStorage(url)
    store = StateStore.open(storage, table_format="parquet")
    for number in range(4):
        storage.listed_folders.clear()
        options: dict[str, Any] = {} if batch is None else {"batch": (batch, number)}
        with store.snapshot(parallelism=1, **options) as checkpoint:
            checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=2)
        assert (CHECKPOINTS in storage.listed_folders) == (number == 0)
    assert store.checkpoints() == (1, 2, 3, 4)


def test_a_writer_lists_the_checkpoints_again_after_a_failed_put(url: str) -> None:
    """I6: a process that was forked during a snapshot may have put a checkpoint under its claim."""
    store = opened(url)
    take(store)
    catalog = Catalog.open(LocalStorage(url), create=False)
    catalog.commit(replace(catalog.manifest(1), checkpoint_id=2))
    with pytest.raises(CommitConflictError, match="first"):
        take(store)
    take(store)
    assert store.checkpoints() == (1, 2, 3)


def test_a_newer_checkpoint_that_was_seen_is_a_conflict(url: str) -> None:
    """I6: even under the same claim."""
    store = opened(url)
    take(store)
    catalog = Catalog.open(LocalStorage(url), create=False)
    checkpoint = store.snapshot(parallelism=1).__enter__()
    checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=4)
    catalog.commit(replace(catalog.manifest(1), checkpoint_id=7))
    assert store.checkpoints() == (1, 7)
    with pytest.raises(CommitConflictError, match="after this one had begun"):
        checkpoint.__exit__(None, None, None)
