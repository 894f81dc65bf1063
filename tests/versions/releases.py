"""The releases in ``releases.toml``, and an environment for each of them.

    python -m tests.versions.releases 0.1.0

It builds the wheel of a release from the release's commit, and installs it into
``build/release-0.1.0``. That environment shares all other packages with the environment that runs
this module.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.syntax import ROOT

__all__ = ["RELEASES", "Release", "ReleaseError", "main", "read_releases"]

FILE = ROOT / "releases.toml"
# The hook of an editable installation would find this tree, so only the folder of the packages is
# added, without the .pth files in it.
SHARED = "shared.pth"


class ReleaseError(Exception):
    """A release cannot be built or is not built."""


@dataclass(frozen=True)
class Release:
    """A release: its version, and the commit that it was built from."""

    version: str
    commit: str

    @property
    def folder(self) -> Path:
        """The folder of its environment."""
        return ROOT / "build" / f"release-{self.version}"

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The folder that contains its package; ReleaseError if it was not built."""
        found = [*self.folder.glob("lib/python*/site-packages")]
        if len(found) != 1 or not (found[0] / "statestore").is_dir():
            raise ReleaseError(
                f"release {self.version} is not built; build it with: "
                f"make build/release-{self.version}/.ready"
            )
        return found[0]

    def is_fetched(self) -> bool:
        """Return True if the history of this clone has the commit."""
        if shutil.which("git") is None:
            return False
        return _git("cat-file", "-e", f"{self.commit}^{{commit}}").returncode == 0

    def build(self) -> None:
        """Create or replace the environment; ReleaseError if the clone lacks the commit."""
        if not self.is_fetched():
            raise ReleaseError(
                f"release {self.version} is commit {self.commit}, which this clone does not have; "
                f"fetch it with: git fetch origin {self.commit}"
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, symlinks=True)
        with tempfile.TemporaryDirectory() as folder:
            wheel = self._wheel(Path(folder))
            options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
            _pip("--python", str(self.python), "install", *options, str(wheel))
        [packages] = self.folder.glob("lib/python*/site-packages")
        (packages / SHARED).write_text(f"{sysconfig.get_path('purelib')}\n")

    def _wheel(self, folder: Path) -> Path:
        archived = _git("archive", "--format=tar", self.commit)
        if archived.returncode != 0:
            raise ReleaseError(
                f"cannot read commit {self.commit} of release {self.version}: "
                f"{archived.stderr.decode().strip()}"
            )
        tree = folder / "tree"
        with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
            archive.extractall(tree, filter="data")
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
        _pip("wheel", *options, str(tree))
        [wheel] = folder.glob(f"statestore-{self.version}-*.whl")
        return wheel


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)


def _pip(*arguments: str) -> None:
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")


def read_releases(text: str) -> tuple[Release, ...]:
    """Return the releases in the text of ``releases.toml``, from the oldest to the newest."""
    entries = tomllib.loads(text)["release"]
    return tuple(Release(entry["version"], entry["commit"]) for entry in entries)


RELEASES = read_releases(FILE.read_text())


def main(arguments: list[str]) -> int:
    """Build the named releases; return the exit code."""
    known = {release.version: release for release in RELEASES}
    for version in arguments:
        if version not in known:
            print(
                f"no release {version} in {FILE.name}; it has {', '.join(known)}", file=sys.stderr
            )
            return 2
        try:
            known[version].build()
        except ReleaseError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
