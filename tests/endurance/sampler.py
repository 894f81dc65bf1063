"""Sample what must not grow: memory, file handles, objects, Delta logs and writers' claims."""

from __future__ import annotations

import csv
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from statestore.format.names import CHECKPOINTS, FILES, WRITERS
from statestore.storage import Storage

__all__ = ["Sampler", "object_counts", "own_figures", "process_figures"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOG = "/_delta_log/"
Figures = dict[str, float]


class Sampler:
    """Writes a row of figures each few seconds, until the block ends."""

    def __init__(
        self, file: Path, seconds: float, figures: Callable[[], Mapping[str, float]]
    ) -> None:
        """Write into ``file``, a CSV; the first figures determine its columns."""
        self._file, self._seconds, self._figures = file, seconds, figures
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def __enter__(self) -> Sampler:
        """Start to sample."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop to sample."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._file.open("w", newline="") as output:
                writer = None
                while not self._ending.is_set():
                    row = self._figures()
                    if writer is None:
                        writer = csv.DictWriter(output, list(row))
                        writer.writeheader()
                    writer.writerow(row)
                    output.flush()
                    self._ending.wait(self._seconds)
        except BaseException as error:
            self.error = error
            raise


def object_counts(storage: Storage, prefix: str) -> Figures:
    """Return the number of objects of a store by purpose, and the longest Delta log."""
    purposes: Counter[str] = Counter()
    logs: Counter[str] = Counter()
    size_bytes = 0
    for item in storage.listed(""):
        size_bytes += item.size_bytes
        purposes[_purpose(item.name)] += 1
        if _LOG in item.name:
            logs[item.name.partition(_LOG)[0]] += 1
    names = ("data", "log", "manifest", "tombstone", "claim", "other")
    counts: Figures = {f"{prefix}_{name}": purposes[name] for name in names}
    longest = max(logs.values(), default=0)
    return counts | {f"{prefix}_longest_log": longest, f"{prefix}_bytes": size_bytes}


def _purpose(name: str) -> str:
    folder = name.partition("/")[0]
    if folder == CHECKPOINTS:
        return "tombstone" if name.endswith(".expired") else "manifest"
    if folder == WRITERS:
        return "claim"
    if _LOG in name:
        return "log"
    return "data" if name.endswith(".parquet") or folder == FILES else "other"


def process_figures(driver: int, processes: list[int]) -> Figures:
    """Return memory, handles and threads of the driver, its JVM, and all Spark workers."""
    found: Figures = {}
    workers = 0
    for name in ("driver", "jvm"):
        found |= {f"{name}_rss": 0, f"{name}_handles": 0, f"{name}_threads": 0}
    found["workers_rss"] = 0
    for process in processes:
        try:
            is_jvm = (Path("/proc") / str(process) / "comm").read_text().strip() == "java"
            figures = dict(_of_process(process))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since
        if process == driver or is_jvm:
            name = "driver" if process == driver else "jvm"
            found |= {f"{name}_{figure}": value for figure, value in figures.items()}
        else:
            workers += 1
            found["workers_rss"] += figures["rss"]
    return found | {"workers": workers}


def own_figures() -> Figures:
    """Return memory and handles of this process."""
    return {f"maintenance_{name}": value for name, value in _of_process(os.getpid())}


def _of_process(process: int) -> Iterator[tuple[str, int]]:
    folder = Path("/proc") / str(process)
    yield "rss", int((folder / "statm").read_text().split()[1]) * _PAGE
    yield "handles", sum(1 for _ in (folder / "fd").iterdir())
    yield "threads", sum(1 for _ in (folder / "task").iterdir())
