"""A disk that is really full, and one that is really read-only. Both are in-memory file systems in
a mount namespace of the test, which needs only the user's own rights.

If the system does not allow the mount, the tests limit the file size and remove write permission
from folders. The user root can write despite the permission.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage import LocalStorage
from statestore.store import StateStore
from statestore.testing.faults import Fault, FaultKind, FaultyStorage
from tests.faults.cases import copy_of, data_files, over, settle, take, whole

pytestmark = pytest.mark.slow

UNSHARE = ["unshare", "--map-root-user", "--mount", "--user"]
WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
ROOT = Path(__file__).parents[2]


def can_mount(folder: Path) -> bool:
    """Return whether this system lets a user mount file systems in a namespace."""
    try:
        script = f"mount -t tmpfs -o size=64k none {folder}"
        done = subprocess.run([*UNSHARE, "sh", "-c", script], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def mounted(script: str, name: str, folder: Path) -> None:
    """Run a function of this module in a mount namespace that the script prepared."""
    run_in([*UNSHARE, "sh", "-c", f'{script} && exec "$@"', "sh"], name, folder)


def run_in(words: list[str], name: str, folder: Path) -> None:
    """Run a function of this module in a process that this command line starts."""
    imports = "from pathlib import Path; import tests.faults.test_disks as t"
    command = [*words, sys.executable, "-c", f"{imports}; t.{name}(Path({str(folder)!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def fill(folder: Path) -> None:
    """Take snapshots until the disk is full, then free space. Committed checkpoints are intact, and
    the next snapshot succeeds. An export to a full disk leaves nothing.
    """
    store = over(LocalStorage(str(folder / "store")))
    with pytest.raises(StorageError, match="the disk is full"):
        take_many(store)
    number = store.checkpoints()[-1]
    assert number >= 2
    assert store.checkpoints() == tuple(range(1, number + 1))
    for checkpoint in store.checkpoints():
        whole(store, checkpoint)
    with pytest.raises(StorageError):
        store.restore().export(folder / "out")
    assert [path.name for path in folder.iterdir() if any(path.iterdir())] == ["store"]
    subprocess.run(["mount", "-o", "remount,size=8m", folder], check=True)
    settle(folder / "store", store.checkpoints())


def free(folder: Path) -> None:
    """Expire and collect on the full disk, without any other space; then snapshots succeed."""
    store = over(LocalStorage(str(folder / "store")))
    with pytest.raises(StorageError, match="the disk is full"):
        take_many(store)
    number = store.checkpoints()[-1]
    while room := os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize:
        Path(folder, f"other-{room}").write_bytes(bytes(room))
    done = store.maintenance.expire(retain=1)
    assert (done.expired, done.kept) == (tuple(range(1, number)), (number,))
    assert store.checkpoints() == (number,)
    tombstone = Path(store.url, "checkpoints", "0000000001.expired")
    assert tombstone.read_bytes() == Path(store.url, "statestore.json").read_bytes()
    assert store.maintenance.gc(minimum_age="0").manifests == done.expired
    whole(store, number)
    take(store, number + 1)
    whole(store, number + 1)
    assert store.checkpoints() == (number, number + 1)


def take_many(store: StateStore) -> None:
    for number in range(1, 1000):
        take(store, number)


def refuse(folder: Path) -> None:
    """Read from a read-only disk. A snapshot reports the error and changes nothing."""
    before, store = data_files(folder), over(LocalStorage(str(folder)))
    with pytest.raises(StorageError, match=r"Read-only|permission denied"):
        take(store, 2)
    with pytest.raises((StorageError, InvalidArgumentError)):
        store.restore().export(folder / "out")
    whole(store, 1)
    assert store.maintenance.verify(deep=True).is_intact
    assert data_files(folder) == before


def test_a_full_disk(tmp_path: Path) -> None:
    """I4, I5, I10: on a tmpfs of 192 KiB."""
    if can_mount(tmp_path):
        mounted(f"mount -t tmpfs -o size=192k none {tmp_path}", "fill", tmp_path)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    take(over(LocalStorage(str(tmp_path))), 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(StorageError, match="cannot write"):
            take(over(LocalStorage(str(tmp_path))), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    settle(tmp_path, (1,))


@pytest.mark.long
def test_expiry_frees_a_full_disk(tmp_path: Path) -> None:
    """I4, I6, I9: a tombstone needs no space on a tmpfs of 192 KiB."""
    if can_mount(tmp_path):
        mounted(f"mount -t tmpfs -o size=192k none {tmp_path}", "free", tmp_path)
        return
    store = over(LocalStorage(str(tmp_path)))
    take(store, 1)
    take(store, 2)
    full = over(FaultyStorage(LocalStorage(str(tmp_path)), Fault(1, FaultKind.FULL, lasting=True)))
    with pytest.raises(StorageError):  # this simulated disk cannot even be synced
        full.maintenance.expire(retain=1)
    assert store.checkpoints() == (2,)


def test_a_read_only_store(base: Path, tmp_path: Path) -> None:
    """I4, I10: on a read-only bind mount. A snapshot succeeds when the store is writable again."""
    folder = copy_of(base, tmp_path / "store")
    if can_mount(tmp_path):
        bind = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
        mounted(bind, "refuse", folder)
    else:
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        for path in folders:
            path.chmod(0o555)
        try:
            if os.access(folder, os.W_OK):  # root can write despite the permission
                run_in(WITHOUT_RIGHTS, "refuse", folder)
            else:
                refuse(folder)
        finally:
            for path in folders:
                path.chmod(0o755)
    settle(folder, (1,))
