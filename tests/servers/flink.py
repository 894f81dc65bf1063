"""Run real Flink on this machine for tests: its published jars, and programs that run jobs.

::

    flink = Flink("2.3.0")
    flink.run([{"do": "savepoint", "to": "/tmp/s", "events": "400", "format": "CANONICAL"}])

All jobs of a call run in one JVM. ``python -m tests.servers.flink`` fetches the jars of the newest
version. The jars of other versions are fetched when a test first needs them. They are kept in a
folder of this Python environment, or in the folder that $FLINK_JARS names.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from statestore.errors import MissingDependencyError, StorageError
from statestore.spark.session import java_home
from tests.servers.jars import JarSet, jars_of
from tests.servers.process import SHORT_LIVED_JVM
from tests.servers.published import FLINK_AVRO, PublishedJar

__all__ = ["JVM", "VERSIONS", "Flink", "flink_with_avro", "flink_with_kafka"]

VERSIONS = ("2.3.0", "1.20.3")
SOURCES = Path(__file__).parents[1] / "interop" / "flink" / "java"
JOB_SECONDS = 240
_OPENED = (
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
    *("java.lang", "java.math", "java.time"),
)
JVM = (
    "-Xmx1200m",
    *SHORT_LIVED_JVM,
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
)
# Two libraries are not needed, and one log layout needs a class that is missing.
_UNUSED = ("flink-cep", "flink-csv", "log4j-layout")
_LOG = """rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.name = console
appender.console.type = CONSOLE
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1} %m%n%throwable
"""


KAFKA = {
    version: JarSet(
        f"flink-kafka-{connector}",
        (f"org.apache.flink:flink-connector-kafka:{connector}",),
        wanted=("org.apache.flink_flink-connector-kafka", "org.apache.kafka_kafka-clients"),
    )
    for version, connector in (("2.3.0", "5.0.0-2.2"), ("1.20.3", "3.4.0-1.20"))
}
"""The connectors, by the version of Flink."""


@dataclass(frozen=True)
class Flink:
    """A version of Flink, and the programs that are compiled for it.

    If there is a connector, the sources in its folder are compiled as well, and ``main`` is
    the program that runs jobs. ``formats`` are further jars of its jobs.
    """

    version: str
    main: str = "golden.Main"
    connector: str | None = None
    connector_jars: JarSet | None = None
    formats: tuple[PublishedJar, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of its jars and classes."""
        kept = os.environ.get("FLINK_JARS") or Path(sys.prefix) / "share" / "statestore"
        return Path(kept) / f"flink-{self.version}"

    def fetch(self) -> None:
        """Fetch its jars the first time; MissingDependencyError if that fails."""
        done = self.folder / "complete"
        if done.exists():
            return
        package = f"apache-flink-libraries=={self.version}"
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
        command = [sys.executable, "-m", "pip", "install", *options, str(self.folder), package]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise MissingDependencyError(
                f"{package} could not be fetched: check the network; pip said:\n{said.stderr}"
            )
        done.touch()

    def libraries(self) -> tuple[Path, ...]:
        """Return all published jars; MissingDependencyError if they cannot be fetched."""
        self.fetch()
        return tuple(sorted((self.folder / "pyflink" / "lib").glob("*.jar")))

    def jars(self) -> tuple[Path, ...]:
        """Return the jars of its jobs; MissingDependencyError if they cannot be fetched."""
        own = tuple(jar for jar in self.libraries() if not jar.name.startswith(_UNUSED))
        own += tuple(jar.file for jar in self.formats)
        return own if self.connector_jars is None else (*own, *jars_of(self.connector_jars))

    def run(self, steps: Sequence[Mapping[str, str]]) -> list[str]:
        """Run jobs in turn, as ``Main.java`` describes; return the paths of their snapshots."""
        words = [" ".join(f"{name}={value}" for name, value in step.items()) for step in steps]
        lines = self.java(self.main, words).splitlines()
        kinds = ("savepoint ", "checkpoint ")
        return [line.split()[-1].removeprefix("file:") for line in lines if line.startswith(kinds)]

    def java(self, name: str, arguments: Sequence[str]) -> str:
        """Run a program from the source folder; return its output, or raise StorageError."""
        return _output(self.command(name, arguments), f"{name} with Flink {self.version}")

    def command(self, name: str, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs a program from the source folder."""
        classes = self._compiled()
        log = f"-Dlog4j.configurationFile=file:{classes / 'log4j2.properties'}"
        path = ["-cp", ":".join(map(str, (classes, *self.jars())))]
        return [str(java_home() / "bin" / "java"), *JVM, log, *path, name, *arguments]

    def _compiled(self) -> Path:
        """Return the folder of the classes; compile them again after a source has changed."""
        sources = sorted(SOURCES.glob("*.java"))
        if self.connector is not None:
            sources += sorted((SOURCES / self.connector).glob("*.java"))
        digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[
            :16
        ]
        folder = self.folder / f"classes-{digest}"
        if not (folder / "complete").exists():
            folder.mkdir(parents=True, exist_ok=True)
            path = ["-nowarn", "-cp", ":".join(map(str, self.jars())), "-d", str(folder)]
            compiler = java_home() / "bin" / "javac"
            if not compiler.exists():
                raise MissingDependencyError(
                    f"{compiler} is not there: the tests with Flink need a JDK, not a JRE alone"
                )
            command = [str(compiler), *path, *map(str, sources)]
            _output(command, f"javac with Flink {self.version}")
            (folder / "log4j2.properties").write_text(_LOG)
            (folder / "complete").touch()
        return folder


def _output(command: list[str], what: str) -> str:
    said = subprocess.run(command, capture_output=True, text=True, timeout=JOB_SECONDS, check=False)
    if said.returncode:
        end = "\n".join(said.stderr.splitlines()[-40:])
        raise StorageError(f"{what} failed:\n{end}")
    return said.stdout


def flink_with_kafka(version: str = VERSIONS[0]) -> Flink:
    """Return a version with a program whose job reads a topic."""
    return Flink(version, "golden.Kafka", "kafka", KAFKA[version])


def flink_with_avro() -> Flink:
    """Return the newest version with the classes of Avro, which have names of Flink's own."""
    return Flink(VERSIONS[0], formats=(FLINK_AVRO,))


def main() -> int:
    """Fetch the jars of the newest version; return the exit code."""
    newest = Flink(VERSIONS[0])
    try:
        print(f"flink-{newest.version}: {len(newest.jars())} jars")
    except MissingDependencyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
