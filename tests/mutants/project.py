"""A copy of the project, in which one module is changed and tests run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Outcome", "ProjectCopy"]

_NOT_COPIED = (".git", ".venv", "build", "__pycache__", ".hypothesis", ".*_cache", "*.pyc")


@dataclass(frozen=True)
class Outcome:
    """What some tests did: ``passed``, ``failed``, ``crashed`` or ``timeout``, in which test."""

    outcome: str
    test: str | None
    ran: int


class ProjectCopy:
    """A copy in a temporary folder. The project's own files never change.

    Args:
        root: the project.
        folder: where to copy it to.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = folder / "project"
        shutil.copytree(root, self._root, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        for name in (".venv", "build"):
            if (root / name).exists():
                (self._root / name).symlink_to((root / name).resolve())
        env = {**os.environ, "PYTHONPATH": str(self._root), "CI": "1"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        self._worker = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("worker.py")), str(self._root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._root,
            env=env,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.terminate()
        self._worker.wait()
        self._worker.stdin.close()
        self._worker.stdout.close()

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Change one module while the context is open."""
        path = self._root / file
        before = path.read_bytes()
        try:
            self._write(path, text.encode())
            yield
        finally:
            self._write(path, before)

    def run(self, tests: Sequence[str], seconds: float) -> Outcome:
        """Run tests until one fails, or takes longer than these seconds."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps({"tests": list(tests), "seconds": seconds}) + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended; {self._root}.log has the output of the tests")
        return Outcome(**json.loads(answer))

    def _write(self, path: Path, text: bytes) -> None:
        """Write a module, and forget its bytecode, whose check misses changes within a second."""
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_bytes(text)
