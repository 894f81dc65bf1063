"""Jars from Maven for tests, such as the test jars with snapshots of Flink and Spark.

Flink and Spark publish the snapshots of their compatibility tests in such jars. A jar is fetched
when a test first needs it, and kept in a folder of this Python environment.
``python -m tests.servers.published`` fetches all of them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from statestore.errors import MissingDependencyError
from statestore.spark.jars import CENTRAL, MIRROR

__all__ = [
    *("FLINK_1_13", "FLINK_1_15", "FLINK_1_20", "FLINK_AVRO", "FLINK_SQL", "SPARK"),
    "PublishedJar",
]

_SECONDS = 120


@dataclass(frozen=True)
class PublishedJar:
    """A jar of a Maven artifact, and its SHA-256; by default the jar of the artifact's tests."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str | None = "tests"

    @property
    def file(self) -> Path:
        """The jar, fetched the first time; MissingDependencyError if that fails."""
        folder = Path(sys.prefix) / "share" / "statestore" / "published"
        suffix = "" if self.classifier is None else f"-{self.classifier}"
        path = folder / f"{self.artifact}-{self.version}{suffix}.jar"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            new.write_bytes(self._fetch(path.name))
            new.replace(path)
        return path

    def _fetch(self, name: str) -> bytes:
        root = (os.environ.get(MIRROR) or CENTRAL).rstrip("/")
        url = f"{root}/{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{name}"
        try:
            with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
                data: bytes = answer.read()
        except OSError as error:
            raise MissingDependencyError(
                f"{url} could not be fetched ({error}); check the network, or name a mirror in "
                f"{MIRROR}"
            ) from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise MissingDependencyError(f"{url} does not have the expected SHA-256")
        return data

    def folders(self) -> tuple[str, ...]:
        """Return the folders of savepoints in the jar, with the file ``_metadata``."""
        with zipfile.ZipFile(self.file) as jar:
            names = [Path(name) for name in jar.namelist()]
        return tuple(sorted(str(name.parent) for name in names if name.name == "_metadata"))

    def unpack(self, folder: str, target: Path) -> Path:
        """Unpack a folder of the jar below ``target``; return where it is."""
        with zipfile.ZipFile(self.file) as jar:
            members = [name for name in jar.namelist() if name.startswith(f"{folder}/")]
            if not members:
                raise FileNotFoundError(f"{self.file} has no folder {folder}")
            jar.extractall(target, members)
        return target / folder


FLINK_1_13 = PublishedJar(
    "org.apache.flink",
    "flink-tests",
    "1.13.6",
    "6178e92607953a131d594faa8e5875df904349aadeea16f1407e8537500a5ca5",
)
FLINK_1_15 = PublishedJar(
    "org.apache.flink",
    "flink-tests",
    "1.15.4",
    "43ebd8e61359c8b7d8adf3e0870a23604d7748c4f79c239755431411c69283ed",
)
FLINK_1_20 = PublishedJar(
    "org.apache.flink",
    "flink-tests",
    "1.20.1",
    "9e206f046268f6c033bed1ff1a435f4e937ed281505ffcf6f9fa6e2bd7130290",
)
FLINK_SQL = PublishedJar(
    "org.apache.flink",
    "flink-table-planner_2.12",
    "2.1.0",
    "12733250af96e84466ebe5e909fb750c513c03d4078f5523ada086c5bb5eb402",
)
FLINK_AVRO = PublishedJar(
    "org.apache.flink",
    "flink-sql-avro",
    "2.3.0",
    "8f6a41ce820303bd816ebddafbd6edcd6b5c43b4fdac348ad7c0d9029e4e7f75",
    classifier=None,
)
SPARK = PublishedJar(
    "org.apache.spark",
    "spark-sql_2.13",
    "4.2.0",
    "810bef6fd568e1626aad7354a1161e9e5ac629fbc55ba0a9a4e3cec8c06376eb",
)


def main() -> int:
    """Fetch all jars; return an exit code."""
    try:
        for jar in (FLINK_1_13, FLINK_1_15, FLINK_1_20, FLINK_AVRO, FLINK_SQL, SPARK):
            print(f"{jar.file.name}: {jar.file.stat().st_size:,} bytes")
    except MissingDependencyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
