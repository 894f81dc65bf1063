"""Run a program under the recorder, and read its log.

The recorder (``recorder.c``) is compiled with the system's C compiler. It is loaded into the
program and all of its processes, including Arrow, DuckDB, delta-rs and the JVM.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.syntax import ROOT

__all__ = ["Record", "Recording", "facts_of", "mark", "record", "recorder", "settle"]

_HEADER = struct.Struct("<9Q")
_SOURCE = Path(__file__).with_name("recorder.c")


@dataclass(frozen=True)
class Record:
    """One call: its kind, as in ``recorder.c``, and the inodes, names and bytes it was about.

    ``process`` is the id of the process that made it.
    """

    kind: str
    inode: int
    parent: int
    to_parent: int
    offset: int
    name: str
    to_name: str
    data: bytes
    process: int = 0


@dataclass(frozen=True)
class Recording:
    """The calls of a program on the files below ``root``, in their order."""

    root: Path
    records: tuple[Record, ...]
    root_inode: int


@functools.cache
def recorder() -> Path:
    """Compile the recorder once in each process, and return the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler: install gcc, which builds tests/power/recorder.c")
    build = Path(tempfile.mkdtemp(prefix="statestore-recorder-"))
    library = build / "recorder.so"
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return library


def record(module: str, words: tuple[str, ...], folder: Path, loses: str = "") -> Recording:
    """Run ``python -m module ROOT words…`` under the recorder.

    Args:
        module: the program; its first argument is an empty folder ``root``, the recorded one.
        words: its other arguments.
        folder: an empty folder, for ``root`` and the log.
        loses: ``files`` or ``folders`` omits their fsync from the log, as a disk does that lies.

    Returns:
        The log.
    """
    folder = folder.resolve()
    root, log = folder / "root", folder / "log"
    root.mkdir()
    variables = {
        "LD_PRELOAD": str(recorder()),
        "POWER_LOG": str(log),
        "POWER_LOSES": loses,
        "POWER_ROOT": str(root),
    }
    done = subprocess.run(
        [sys.executable, "-m", module, str(root), *words],
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the recorded program failed:\n{done.stdout}{done.stderr[-8000:]}")
    return Recording(root, tuple(_read(log)), root.stat().st_ino)


def _read(log: Path) -> Iterator[Record]:
    with log.open("rb") as file:
        while header := file.read(_HEADER.size):
            process, kind, inode, parent, to_parent, offset, *lengths = _HEADER.unpack(header)
            name, to_name, data = (file.read(length) for length in lengths)
            texts = name.decode(), to_name.decode()
            yield Record(chr(kind), inode, parent, to_parent, offset, *texts, data, process)


def mark(what: str, **facts: Any) -> None:
    """Write a mark into the log of this process's recorder."""
    ctypes.CDLL(None).power_mark(json.dumps({"what": what, **facts}).encode())


def settle() -> None:
    """Record that all files are durable: so much time has passed since they were written."""
    ctypes.CDLL(None).power_settle()


def facts_of(record: Record) -> Mapping[str, Any]:
    """Return what a mark says."""
    facts: dict[str, Any] = json.loads(record.data)
    return facts
