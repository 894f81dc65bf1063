"""Which folders count as changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.changes import changed_folders


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with two commits, of which the second changes ``b``."""
    git(tmp_path, "init", "--quiet")
    for number, folder in enumerate(("a", "b"), start=1):
        write(tmp_path, folder, number)
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--message", folder)
    return tmp_path


def git(root: Path, *arguments: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", "-C", str(root), *author, *arguments], check=True)


def write(root: Path, folder: str, number: int) -> None:
    (root / folder).mkdir(exist_ok=True)
    (root / folder / f"{number}.py").write_text(folder)


def test_without_an_upstream_the_last_commit_and_the_working_tree_count(project: Path) -> None:
    assert changed_folders(project) == frozenset({"b"})
    write(project, "c", 3)
    (project / "a" / "1.py").write_text("changed")
    assert changed_folders(project) == frozenset({"a", "b", "c"})


def test_commits_that_the_upstream_lacks_count(project: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(project, "clone", "--quiet", str(project), str(clone))
    for number, folder in enumerate(("c", "d"), start=3):
        write(clone, folder, number)
        git(clone, "add", "--all")
        git(clone, "commit", "--quiet", "--message", folder)
    assert changed_folders(clone) == frozenset({"c", "d"})


def test_a_folder_without_git_is_unknown(tmp_path: Path) -> None:
    assert changed_folders(tmp_path / "missing") is None
