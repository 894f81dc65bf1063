"""Run Flink's own restore tests over the savepoints of a folder.

Flink publishes tests that restore a savepoint and compare what the job then does. They are run by
JUnit, all tests of a call in one JVM. Their jars are fetched when a test first needs them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from statestore.errors import StorageError
from statestore.spark.session import java_home
from tests.servers.flink import JVM, Flink
from tests.servers.published import FLINK_1_15, FLINK_1_20, FLINK_SQL, PublishedJar

__all__ = ["MIGRATION", "SQL", "RestoreTests", "Verdicts"]

_DISPLAY_NAME = re.compile(r"^display-name: (.*)$", re.MULTILINE)
_JUNIT = PublishedJar(
    "org.junit.platform",
    "junit-platform-console-standalone",
    "1.11.4",
    "b016ef6b1c3454d6d7c2c88ce081dabf289699686af6622d6e4e2e1b54b4a2fc",
    classifier=None,
)


def _flink(artifact: str, version: str, sha256: str, classifier: str | None = None) -> PublishedJar:
    return PublishedJar("org.apache.flink", artifact, version, sha256, classifier)


@dataclass(frozen=True)
class Verdicts:
    """The tests that passed, and the ends of the reports of those that failed, by name.

    A name has the class without its package, and the parameters of the test.
    """

    passed: frozenset[str]
    failed: dict[str, str]


@dataclass(frozen=True)
class RestoreTests:
    """Tests of one version of Flink, and the jars that they need besides Flink's libraries."""

    flink: Flink
    jars: tuple[PublishedJar, ...]

    def run(self, folder: Path, selectors: Sequence[str], *, seconds: int) -> Verdicts:
        """Run tests; return their outcomes, or raise StorageError if the JVM does not end.

        Args:
            folder: the working directory, which is also first in the class path.
            selectors: arguments of JUnit's console launcher, such as ``--select-class=a.b.C``.
            seconds: the time after which the JVM is ended.
        """
        log, reports = folder / "junit.log", folder / "reports"
        command = [str(java_home() / "bin" / "java"), *JVM, "-Dlog4j2.level=ERROR"]
        command += ["-cp", ":".join(map(str, (folder, *self._class_path())))]
        command += ["org.junit.platform.console.ConsoleLauncher", "execute", "--details=none"]
        command += [f"--reports-dir={reports}", "--fail-if-no-tests", *selectors]
        with log.open("wb") as output:
            try:
                subprocess.run(
                    command, cwd=folder, stdout=output, stderr=output, timeout=seconds, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise StorageError(
                    f"JUnit did not end in {seconds} s; its output: {log}"
                ) from error
        return _verdicts(reports, log)

    def _class_path(self) -> Iterator[Path]:
        """Yield the jars; the planner is the one that the tests use the classes of."""
        yield _JUNIT.file
        for library in self.flink.libraries():
            if not library.name.startswith(("flink-table-planner-loader", "log4j-layout")):
                yield library
        yield from (jar.file for jar in self.jars)


def _verdicts(reports: Path, log: Path) -> Verdicts:
    passed: set[str] = set()
    failed: dict[str, str] = {}
    files = sorted(reports.glob("TEST-*.xml"))
    if not files:
        raise StorageError(f"JUnit wrote no report; its output: {log}")
    for file in files:
        for case in ET.parse(file).iterfind("testcase"):
            if case.find("skipped") is not None:
                continue
            name = f"{case.attrib['classname'].rpartition('.')[2]} {_parameters(case)}"
            problems = [*case.iterfind("failure"), *case.iterfind("error")]
            if problems:
                failed[name] = (problems[0].text or "")[:2000]
            else:
                passed.add(name)
    return Verdicts(frozenset(passed), failed)


def _parameters(case: ET.Element) -> str:
    """Return a test's display name up to the first path, without brackets."""
    outputs = (output.text or "" for output in case.iterfind("system-out"))
    found = _DISPLAY_NAME.search("\n".join(outputs))
    text = case.attrib["name"] if found is None else found[1]
    return text.partition(", /")[0].replace("[", "").replace("]", "")


SQL = RestoreTests(
    Flink("2.1.0"),
    (
        FLINK_SQL,
        _flink(
            "flink-table-planner_2.12",
            "2.1.0",
            "88b236124742e2eb816bc412ae4c14c7949380c064137a127da6859e29d35a0e",
        ),
        _flink(
            "flink-table-api-java",
            "2.1.0",
            "aaff709eab3d201cc8da24639efc969aaaf055261f8c54bea9126af91773d1a2",
            "tests",
        ),
        _flink(
            "flink-table-common",
            "2.1.0",
            "1366ce0516d6c32dd298c470876151a082056838ab45a468dd5ef1dede594eca",
            "tests",
        ),
        _flink(
            "flink-core",
            "2.1.0",
            "4f0bbf2ee001a5190e687406e8bf380560d4b7f2230d83b635c265618c34f115",
            "tests",
        ),
        _flink(
            "flink-runtime",
            "2.1.0",
            "5502793857cbcb6e300be1f946250a76319f2f04e9dc21acf98f66e314017ad3",
            "tests",
        ),
        _flink(
            "flink-streaming-java",
            "2.1.0",
            "4c7d604b07634f16f5c1c215ac03531499d0d908c11b1b60c484b563ec7b5e50",
            "tests",
        ),
        _flink(
            "flink-test-utils",
            "2.1.0",
            "181eb2eadd3789a0b9a24d6687cf49249ff11680a8660d46e5414d6738ae1e73",
        ),
        _flink(
            "flink-test-utils-junit",
            "2.1.0",
            "0ffc346fbf789fb6833b76a84793982691eaf2147c6b5ae6e9d7fc43a2b98a6b",
        ),
        PublishedJar(
            "org.assertj",
            "assertj-core",
            "3.27.3",
            "5b8a26205f6d5ea60ad9ce65ce4a40a2afe4c48abeec61bd0740a088c24e89f5",
            classifier=None,
        ),
        PublishedJar(
            "org.scala-lang",
            "scala-library",
            "2.12.20",
            "4d8a8f984cce31a329a24f10b0bf336f042cb62aeb435290a1b20243154cfccb",
            classifier=None,
        ),
    ),
)
"""The tests of SQL's operators, which read ``src/test/resources/restore-tests`` of the folder."""

# Flink 1.20 no longer has the tests with a serializer of the job's own, but can run them.
MIGRATION = RestoreTests(
    Flink("1.20.3"),
    (
        FLINK_1_20,
        FLINK_1_15,
        _flink(
            "flink-core",
            "1.20.1",
            "3bc474a228334efafe25630d5397047e940cff74b930235ae6631effd25f288b",
            "tests",
        ),
        _flink(
            "flink-runtime",
            "1.20.1",
            "90ac4a98fe0c363d32ea5b2c0694c93472fe0e9f059c8589fc5ae63095556a50",
            "tests",
        ),
        _flink(
            "flink-streaming-java",
            "1.20.1",
            "0210e025c8cbc2725b30d922e0e26f0213cbd2c815fd4fe8942d8e51567c4059",
            "tests",
        ),
        _flink(
            "flink-test-utils",
            "1.20.1",
            "eb24a74e6b7c8967823b523f1b917b7a4bf29cb4d6ad3556e8ef6fe296157a0a",
        ),
        _flink(
            "flink-test-utils-junit",
            "1.20.1",
            "43ecacb99443c09683fdf4d946117aa9da01042723379037bebcdc5b063e9088",
        ),
        _flink(
            "flink-migration-test-utils",
            "1.20.0",
            "139e54531edac61e71e4e4bc8be6d4f09edb6e80a93970abc6fac147e5aa46d3",
        ),
        _flink(
            "flink-statebackend-changelog",
            "1.20.1",
            "f5cfcfb2b3057a0cc63af18cdd0c82f1f70ad841faa35a531c6dcd0bb88674f6",
        ),
        PublishedJar(
            "org.scala-lang",
            "scala-library",
            "2.12.7",
            "8f3dc6091db688464ad8b1ee6c7343d7aa5940d474ee8b90406c71e45dd74fc0",
            classifier=None,
        ),
        PublishedJar(
            "org.apache.avro",
            "avro",
            "1.11.3",
            "4554aa8f8175f999fc56e35d8d294d634480992ce02406a52c650f521997e436",
            classifier=None,
        ),
        PublishedJar(
            "junit",
            "junit",
            "4.13.2",
            "8e495b634469d64fb8acfa3495a065cbacc8a0fff55ce1e31007be4c16dc57d3",
            classifier=None,
        ),
        PublishedJar(
            "org.hamcrest",
            "hamcrest-all",
            "1.3",
            "4877670629ab96f34f5f90ab283125fcd9acb7e683e66319a68be6eb2cca60de",
            classifier=None,
        ),
    ),
)
"""The tests of DataStream jobs over savepoints of Flink 1.8 to 1.19, in folders by their names."""
