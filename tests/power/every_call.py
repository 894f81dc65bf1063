"""A recorded program that makes every call that the recorder knows, or one that it refuses.

``python -m tests.power.every_call ROOT known`` makes all of them, in threads and processes too.
``mapped`` writes into a shared mapping, and ``hidden`` writes through libc's own buffers, which the
recorder does not see.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from threading import Thread

__all__ = ["main"]


def known(root: Path) -> None:
    """Make every call."""
    folder = root / "folder"
    folder.mkdir()
    _write(folder / "written")
    _change_names(root, folder)
    shutil.copyfile(folder / "written", folder / "copied")
    threads = [Thread(target=_append, args=(folder / "together", bytes([i]))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = get_context("fork").Process(target=_append, args=(folder / "together", b"f"))
    child.start()
    child.join()
    subprocess.run(["sh", "-c", f"echo text >> {folder}/together"], check=True)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _write(path: Path) -> None:
    """Write, lengthen and cut a file in each way."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"0123456789")
    os.pwrite(descriptor, b"ab", 4)
    os.writev(descriptor, [b"one", b"two"])
    os.pwritev(descriptor, [b"x", b"y"], 30)
    os.ftruncate(descriptor, 31)
    os.posix_fallocate(descriptor, 0, 64)
    os.fdatasync(descriptor)
    other = os.dup(descriptor)
    os.write(other, b"through a copy of the descriptor")
    source = os.open(__file__, os.O_RDONLY)
    os.sendfile(other, source, 0, 100)
    os.copy_file_range(descriptor, other, 50, 7)
    for each in (descriptor, other, source):
        os.close(each)
    os.truncate(path, 120)
    with path.open("r+b") as file:
        file.write(b"again")
    with path.with_name("short").open("wb") as file:
        file.write(b"long content")
    path.with_name("short").write_bytes(b"new")


def _change_names(root: Path, folder: Path) -> None:
    """Create, link, rename and delete in each way."""
    here = os.open(folder, os.O_RDONLY)
    os.mkdir("inner", dir_fd=here)
    descriptor = os.open("inner/file", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(descriptor, b"content")
    os.close(descriptor)
    os.rename("inner/file", "moved", src_dir_fd=here, dst_dir_fd=here)
    os.link("moved", "linked", src_dir_fd=here, dst_dir_fd=here)
    (folder / "linked").replace(folder / "moved")  # two names of one file: nothing happens
    os.unlink("moved", dir_fd=here)
    os.rmdir("inner", dir_fd=here)
    os.close(here)
    (root / "second").mkdir()
    (root / "second").rename(folder / "second")
    os.chdir(root)
    Path("relative").write_bytes(b"relative")
    Path("relative").unlink()


def _append(path: Path, data: bytes) -> None:
    for _ in range(50):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, data)
        os.close(descriptor)


def mapped(root: Path) -> None:
    """Write into a mapping of a file."""
    with (root / "file").open("w+b") as file:
        file.write(bytes(100))
        file.flush()
        with mmap.mmap(file.fileno(), 100) as memory:
            memory[:4] = b"data"


def hidden(root: Path) -> None:
    """Write with libc's fopen and fputs."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    (root / "file").write_bytes(b"")
    file = ctypes.c_void_p(libc.fopen(str(root / "file").encode(), b"r+"))
    libc.fputs(b"text", file)
    libc.fclose(file)


def main() -> None:
    """Run the function that the command line names."""
    folder, name = sys.argv[1:]
    {"known": known, "mapped": mapped, "hidden": hidden}[name](Path(folder))


if __name__ == "__main__":
    main()
