"""The bill of materials of a wheel, and the provenance of a release; ``make dist`` writes both.

The bill (CycloneDX) names what an installation has: the wheel, the files of other projects in it,
and the packages that it needs, in the versions of the environment in which it was tried. The
provenance (an in-toto statement) names the files of the release with their SHA-256, and the commit
that they were built from. Neither contains the time of its build, so a repeated build is equal.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.syntax import ROOT
from tests.ui.vendor import vendored_files

__all__ = ["Commit", "Package", "bill_of", "provenance_of"]


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    version: str
    license: str | None


@dataclass(frozen=True)
class Commit:
    """A commit: its hash, and its time in seconds since 1970."""

    sha: str
    time: int

    @classmethod
    def of_clean_tree(cls) -> Commit | None:
        """Return the commit of this clone; None if a file differs from it, or without Git."""
        if _git("status", "--porcelain") != "":
            return None
        shown = _git("show", "--no-patch", "--format=%H %ct", "HEAD")
        sha, seconds = (shown or "").split()
        return cls(sha, int(seconds))


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def bill_of(wheel: Path, packages: Sequence[Package]) -> dict[str, Any]:
    """Return the bill of materials of a wheel, which is among the ``packages`` of its environment.

    An AssertionError names a wheel that is not.
    """
    name, version = wheel.name.split("-")[:2]
    [own] = (package for package in packages if package.name == name)
    assert own.version == version, own
    others = sorted((p for p in packages if p.name != name), key=lambda package: package.name)
    vendored = [file for file in vendored_files() if not file.name.endswith(".LICENSE.txt")]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component("pypi", own) | {"hashes": [_sha256(wheel)]}},
        "components": [
            *(_component("pypi", package) for package in others),
            *(
                _component("npm", Package(file.package, file.version, file.license))
                | {"hashes": [{"alg": "SHA-256", "content": file.sha256}]}
                for file in vendored
            ),
        ],
    }


def _component(index: str, package: Package) -> dict[str, Any]:
    purl = f"pkg:{index}/{quote(package.name)}@{package.version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
    }
    if package.license:
        component["licenses"] = [{"license": {"name": package.license}}]
    return component


def _sha256(file: Path) -> dict[str, str]:
    return {"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}


def provenance_of(files: Sequence[Path], commit: Commit) -> dict[str, Any]:
    """Return the provenance of the files of a release."""
    time = datetime.fromtimestamp(commit.time, UTC).isoformat()
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": file.name, "digest": {"sha256": _sha256(file)["content"]}}
            for file in sorted(files)
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make dist",
                "externalParameters": {"SOURCE_DATE_EPOCH": commit.time, "commitTime": time},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit.sha}},
                    {"name": "requirements.lock", "digest": {"sha256": _lock()}},
                ],
            },
            "runDetails": {"builder": {"id": "Makefile"}},
        },
    }


def _lock() -> str:
    return hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
