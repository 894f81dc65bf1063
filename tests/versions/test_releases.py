"""The list of releases, and the message for a clone without their commits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import statestore
from tests.syntax import ROOT
from tests.versions.releases import RELEASES, Release, ReleaseError, main


def test_releases_are_ordered_and_have_whole_commits() -> None:
    versions = [tuple(map(int, release.version.split("."))) for release in RELEASES]
    assert versions == sorted(set(versions))
    assert versions[-1] <= tuple(int(part) for part in statestore.__version__.split("."))
    assert RELEASES[0].version == "0.1.0"
    assert all(re.fullmatch("[0-9a-f]{40}", release.commit) for release in RELEASES)


def test_a_commit_that_is_missing_is_named_with_the_command_that_fetches_it() -> None:
    release = Release("0.0.9", "0" * 40)
    assert not release.is_fetched()
    with pytest.raises(ReleaseError, match=f"fetch it with: git fetch origin {'0' * 40}"):
        release.build()
    assert not release.folder.exists()


def test_an_environment_that_is_missing_is_named_with_the_command_that_makes_it() -> None:
    with pytest.raises(ReleaseError, match=r"make build/release-0\.0\.9/\.ready"):
        _ = Release("0.0.9", "0" * 40).packages


def test_an_unknown_release_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["9.9.9"]) == 2
    assert "no release 9.9.9 in releases.toml; it has 0.1.0" in capsys.readouterr().err


@pytest.mark.slow
def test_without_history_the_command_says_what_to_fetch(tmp_path: Path) -> None:
    """As after a shallow clone, or in an unpacked sdist."""
    for name in ("releases.toml", "tests/syntax.py", "tests/versions/releases.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "tests.versions.releases", "0.1.0"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    environ |= {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.endswith(f"fetch it with: git fetch origin {RELEASES[0].commit}\n")
    assert not (tmp_path / "build").exists()
