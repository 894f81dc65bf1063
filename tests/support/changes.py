"""The folders of tests that differ from the last commit that others have."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

__all__ = ["changed_folders"]


def changed_folders(root: Path) -> frozenset[str] | None:
    """Return the folders with changed files, relative to the root of the project.

    Files are compared with the upstream branch. If nothing is ahead of it, or there is none, they
    are compared with the last commit's parent.

    Returns:
        Folders as ``tests/simulate``; None if Git cannot tell.
    """

    def git(*arguments: str) -> list[str]:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    try:
        [head] = git("rev-parse", "HEAD")
        try:
            [base] = git("merge-base", "HEAD", "@{upstream}")
        except subprocess.CalledProcessError:
            base = head
        if base == head:
            [base] = git("rev-parse", "HEAD~1")
        changed = git("diff", "--name-only", base)
        created = git("ls-files", "--others", "--exclude-standard")
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(str(PurePosixPath(file).parent) for file in (*changed, *created))
