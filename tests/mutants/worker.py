"""Run tests in forks of a process that has already imported the packages of others.

It reads a line of JSON with ``tests`` and ``seconds``, the longest time until the next test starts.
It writes a line with ``outcome``, ``test`` and ``ran``.

It never imports the project, so that each fork imports the changed module. It runs in a copy of the
project, whose folder is its only argument.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

__all__: list[str] = []

_PACKAGES = (
    "click",
    "deltalake",
    "fsspec",
    "google_crc32c",
    "msgspec.json",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.sql",
    "rich.console",
    "xxhash",
)
_COLLECTION_SECONDS = 60.0
"""How long imports and collection may take on a busy machine."""


class _Selection:
    """Runs some tests in their order, and says what happens on a pipe."""

    def __init__(self, tests: list[str], pipe: int) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._pipe = pipe

    def _say(self, what: str, test: str = "") -> None:
        os.write(self._pipe, f"{what} {test}\n".encode())

    def pytest_sessionstart(self) -> None:
        """Let Hypothesis stop at the first failing example."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings(), phases=phases, database=None)
        settings.load_profile("mutants")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Select and order the tests after every other plugin."""
        yield
        order = self._order
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test runs."""
        self._say("started", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say which test failed."""
        if report.failed:
            self._say("failed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Say which file cannot be imported."""
        if report.failed:
            self._say("failed", report.nodeid)


def _fork(root: Path, tests: list[str], pipe: tuple[int, int]) -> int:
    """Start the tests in a process group of their own; return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.close(pipe[0])
        with Path(os.devnull).open() as nothing, Path(f"{root}.log").open("wb") as log:
            for number, file in enumerate((nothing, log, log)):
                os.dup2(file.fileno(), number)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        words = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={root}.tmp"]
        # Hypothesis is imported, but not by pytest, which warns of it.
        words += ["-W", "ignore:Module already imported", *files]
        code = pytest.main(words, plugins=[_Selection(tests, pipe[1])])
        os.write(pipe[1], f"ended {int(code)}\n".encode())
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(root: Path, tests: list[str], seconds: float) -> dict[str, Any]:
    pipe = os.pipe()
    pid = _fork(root, tests, pipe)
    os.close(pipe[1])
    try:
        return _result(pipe[0], seconds)
    finally:
        os.close(pipe[0])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _result(pipe: int, seconds: float) -> dict[str, Any]:
    """Read a fork's lines until it ends, or a test fails or takes too long."""
    read, test, ran = b"", None, 0
    while True:
        wait = seconds if ran else _COLLECTION_SECONDS
        if not select.select([pipe], [], [], wait)[0]:
            return {"outcome": "timeout", "test": test, "ran": ran}
        more = os.read(pipe, 65536)
        if not more:
            return {"outcome": "crashed", "test": test, "ran": ran}
        *lines, read = (read + more).split(b"\n")
        for line in lines:
            what, _, name = line.decode().partition(" ")
            if what == "started":
                test, ran = name, ran + 1
            elif what == "failed":
                return {"outcome": "failed", "test": name, "ran": ran}
            elif name in ("0", "5"):  # passed, or had no tests
                return {"outcome": "passed", "test": None, "ran": ran}
            else:
                return {"outcome": "crashed", "test": test, "ran": ran}


def main() -> None:
    """Answer each request. A fork ends with this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    root = Path(sys.argv[1])
    for package in _PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(package)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_run(root, request["tests"], request["seconds"])), flush=True)


if __name__ == "__main__":
    main()
