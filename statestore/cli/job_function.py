"""Load the function of a user's job that ``job.py:build`` or ``package.module:build`` names."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from statestore.errors import InvalidArgumentError

__all__ = ["call_job", "job_function", "job_version"]


@contextmanager
def job_function(job: str) -> Iterator[Callable[[Any], Any]]:
    """Yield the function that ``job`` names; its module is imported for this context only.

    Afterwards the modules in the job's folder are forgotten. So another version of the job, whose
    modules have the same names, can be loaded.

    Raises:
        InvalidArgumentError: If the module does not load, or lacks the function.
    """
    place, colon, name = job.rpartition(":")
    if not (place and colon and name.isidentifier()):
        raise click.UsageError(
            f"JOB {job!r} must name a function, as job.py:build or package.module:build"
        )
    file = Path(place).resolve() if place.endswith(".py") else None
    if file is not None and not file.is_file():
        raise InvalidArgumentError(f"there is no file {place} with the job; check the path")
    folder = Path.cwd() if file is None else file.parent
    known = {*sys.modules}
    sys.path.insert(0, str(folder))
    try:
        try:
            module = importlib.import_module(place) if file is None else _load_file(file)
        except Exception as error:  # the user's module may fail in any way
            raise InvalidArgumentError(
                f"cannot load {place}: {type(error).__name__}: {error}"
            ) from error
        function = getattr(module, name, None)
        if not callable(function):
            raise InvalidArgumentError(f"{place} has no function {name!r}")
        yield function
    finally:
        sys.path.remove(str(folder))
        own = {name for name in {*sys.modules} - known if _is_in(folder, name)}
        for loaded in [each for each in sys.modules if each.partition(".")[0] in own]:
            del sys.modules[loaded]


def _is_in(folder: Path, module: str) -> bool:
    """Return whether a loaded module, or package without a parent, is directly in a folder."""
    file = Path(getattr(sys.modules[module], "__file__", None) or "")
    return folder in (file.parent, file.parent.parent if file.stem == "__init__" else None)


def _load_file(file: Path) -> ModuleType:
    name = f"statestore_job_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # to find it when its classes are pickled
    spec.loader.exec_module(module)
    return module


def call_job(build: Callable[[Any], Any], session: Any, job: str) -> Any:
    """Return what a job's function makes of a session; InvalidArgumentError if it fails."""
    try:
        return build(session)
    except Exception as error:  # the user's function may fail in any way
        raise InvalidArgumentError(f"{job} failed: {type(error).__name__}: {error}") from error


def job_version(job: str) -> str:
    """Return a job with a digest of its file, which tells two versions in one place apart."""
    file = Path(job.rpartition(":")[0])
    if not file.is_file():
        return job
    return f"{job} ({hashlib.sha256(file.read_bytes()).hexdigest()[:12]})"
