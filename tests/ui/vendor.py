"""Fetch the files of other projects that the pages use: ``make vendor``.

``statestore/ui/static/vendor/vendor.toml`` names the npm package, version and SHA-256 of each file.
A file whose contents differ from its digest is refused. An empty digest is filled in.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.npm import run_npm

__all__ = ["FOLDER", "INDEX", "VendoredFile", "digest", "vendored_files"]

FOLDER = Path(__file__).parents[2] / "statestore" / "ui" / "static" / "vendor"
INDEX = FOLDER / "vendor.toml"


@dataclass(frozen=True)
class VendoredFile:
    """A file of another project: its name here, and its package, version and path there."""

    name: str
    package: str
    version: str
    member: str
    license: str
    sha256: str


def vendored_files() -> list[VendoredFile]:
    """Return the files that the index names."""
    return [VendoredFile(**table) for table in tomllib.loads(INDEX.read_text())["file"]]


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's contents."""
    return hashlib.sha256(content).hexdigest()


def fetch(package: str, version: str, members: list[str]) -> dict[str, bytes]:
    """Return files of a version of an npm package; RuntimeError if npm fails."""
    with TemporaryDirectory() as folder:
        done = run_npm("pack", f"{package}@{version}", "--silent", "--pack-destination", folder)
        archives = [*Path(folder).glob("*.tgz")]
        if done.returncode or len(archives) != 1:
            reason = " ".join(done.stderr.split()) or f"npm ended with {done.returncode}"
            raise RuntimeError(f"cannot fetch {package} {version} ({reason}); check the network")
        with tarfile.open(archives[0]) as archive:
            found = {member: archive.extractfile(f"package/{member}") for member in members}
            return {member: file.read() for member, file in found.items() if file is not None}


def main() -> int:
    """Fetch all files; return 1 if a file does not have its digest."""
    packages: dict[tuple[str, str], list[VendoredFile]] = {}
    for file in vendored_files():
        packages.setdefault((file.package, file.version), []).append(file)
    index, refused = INDEX.read_text(), []
    for (package, version), files in packages.items():
        contents = fetch(package, version, [file.member for file in files])
        for file in files:
            content = contents[file.member]
            if file.sha256 not in ("", digest(content)):
                refused.append(file.name)
                continue
            (FOLDER / file.name).write_bytes(content)
            entry, empty = index.partition(f'name = "{file.name}"')[2], 'sha256 = ""'
            if not file.sha256:
                filled = entry.replace(empty, f'sha256 = "{digest(content)}"', 1)
                index = index.removesuffix(entry) + filled
    INDEX.write_text(index)
    for name in refused:
        print(f"{name} is not the file that vendor.toml names: its digest differs", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
