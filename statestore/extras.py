"""The optional parts of the package: the one error for an extra that is not installed.

The core needs no Spark, pandas or DuckDB. What does is an extra, as ``pyproject.toml`` lists them::

    with needs_extra("query", "SQL"):
        import duckdb

The error names the extra and a command that installs it from the place that the package itself was
installed from: a folder, a file, or a repository. No package index has ours under its name.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from statestore.errors import MissingDependencyError, StateStoreError

__all__ = ["install_hint", "needs_extra"]


@contextmanager
def needs_extra(extra: str, subject: str) -> Iterator[None]:
    """Turn an import that fails in this block into the error that names the extra.

    Args:
        extra: The extra that brings the imported packages.
        subject: What needs them, as a message says it: ``the demo``.

    Raises:
        MissingDependencyError: A package is missing, or cannot be loaded.
    """
    try:
        yield
    except ImportError as error:
        missing = _missing_package(error)
        # Our own errors pass, and a module of ours that is missing is a bug.
        if isinstance(error, StateStoreError) or missing == "statestore":
            raise
        reason = f"{missing} is not installed" if missing else f"a package does not load ({error})"
        raise MissingDependencyError(
            f"{reason}, and is needed for {subject}; install the extra {extra!r}: "
            f"{install_hint(extra)}"
        ) from error


def install_hint(extra: str) -> str:
    """Return the command that adds an extra to this environment.

    Where the package was installed from a place that is gone or not recorded, return where to read
    on instead.
    """
    source = _source()
    requirement = None if source is None else _requirement(source, extra)
    if requirement is None:
        return "see the section Install of statestore's README"
    return f"{_installer()} {requirement}"


def _missing_package(error: BaseException | None) -> str | None:
    """Return the package that an import did not find, None if something else went wrong."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name.partition(".")[0]
        error = error.__cause__  # fsspec has an error of its own around Python's
    return None


def _source() -> Mapping[str, Any] | None:
    """Return what the installer recorded of the package's origin, as PEP 610 has it."""
    from importlib import metadata  # it takes as long as `import statestore`

    # There may be none, as in an archive for spark-submit. A clone may have the record of a build
    # in addition to the one of its installation, without an origin.
    texts = (
        found.read_text("direct_url.json") for found in metadata.distributions(name="statestore")
    )
    text = next(filter(None, texts), None)
    return None if text is None else json.loads(text)


def _requirement(source: Mapping[str, Any], extra: str) -> str | None:
    """Return the argument of pip that names the same place with an extra, None if it is gone."""
    url: str = source["url"]
    if urlsplit(url).scheme == "file" and "vcs_info" not in source:
        path = Path(url2pathname(urlsplit(url).path))
        editable = "--editable " if source.get("dir_info", {}).get("editable") else ""
        return f"{editable}{shlex.quote(f'{path}[{extra}]')}" if path.exists() else None
    if vcs := source.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    if folder := source.get("subdirectory"):
        url = f"{url}#subdirectory={folder}"
    return shlex.quote(f"statestore[{extra}] @ {url}")


def _installer() -> str:
    """Return the command that installs into this environment; uv makes some without pip."""
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
