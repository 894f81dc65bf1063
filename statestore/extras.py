"""The optional dependencies of the package, and the error for an extra that is not installed.

The core needs no Spark, pandas or DuckDB. Packages that need them are extras, as listed in
``pyproject.toml``::

    with needs_extra("query", "SQL"):
        import duckdb

The error names the extra, and a command that installs it from the origin of the installed package:
a folder, a file, or a repository. No package index has this package under its name.
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


@contextmanager
def needs_extra(extra: str, subject: str) -> Iterator[None]:
    """Turn a failed import in this block into the error that names the extra.

    Args:
        extra: The extra that provides the imported packages.
        subject: What needs the packages, as text for the message: ``the demo``.

    Raises:
        MissingDependencyError: A package is missing, or cannot be loaded.
    """
    try:
        yield
    except ImportError as error:
        missing = _missing_package(error)
        # Errors of this package pass unchanged, and a missing module of this package is a bug.
        if isinstance(error, StateStoreError) or missing == "statestore":
            raise
        reason = (
            f"{missing} is not installed" if missing else f"a package cannot be imported ({error})"
        )
        raise MissingDependencyError(
            f"{reason}, but {subject} requires it; install the extra {extra!r}: "
            f"{install_hint(extra)}"
        ) from error


def install_hint(extra: str) -> str:
    """Return the command that adds an extra to this environment.

    If the package's origin is gone or unknown, return where the installation is described.
    """
    source = _source()
    requirement = None if source is None else _requirement(source, extra)
    if requirement is None:
        return "see the section Install in statestore's README"
    return f"{_installer()} {requirement}"


def _missing_package(error: BaseException | None) -> str | None:
    """Return the package that an import did not find; None if something else failed."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name.partition(".")[0]
        error = error.__cause__  # fsspec wraps Python's error in its own
    return None


def _source() -> Mapping[str, Any] | None:
    """Return the package's origin as the installer recorded it (PEP 610)."""
    from importlib import metadata  # this import takes as long as `import statestore`

    # The record may be missing, as in an archive for spark-submit. A clone may have two records:
    # one of its installation, and one of a build, without an origin.
    texts = (
        distribution.read_text("direct_url.json")
        for distribution in metadata.distributions(name="statestore")
    )
    text = next(filter(None, texts), None)
    return None if text is None else json.loads(text)


def _requirement(source: Mapping[str, Any], extra: str) -> str | None:
    """Return pip's argument for the same origin with an extra; None if the origin is gone."""
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
    """Return the command that installs into this environment, which uv creates without pip."""
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
