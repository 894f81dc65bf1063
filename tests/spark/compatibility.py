"""``python -m tests.spark.compatibility VERSION...`` writes docs/compatibility.md.

``make test-spark`` must have run the tests of each version. Their results are read from
``build/spark-VERSION/tests.xml``. The results with other Pythons are the ones that
``tests/spark/environments.py`` has left. A combination without a result was not tried.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.spark import test_versions
from tests.spark.environments import ENVIRONMENTS, PANDAS, PythonEnvironment
from tests.syntax import ROOT

PAGE = ROOT / "docs" / "compatibility.md"
MARK = "<!-- the table of the last run -->\n"
ENVIRONMENTS_MARK = "<!-- the environments of the last run -->\n"
WORKS, REFUSED, FAILS = "works", "refused", "fails"


def features() -> dict[str, str]:
    """Return the title of each feature by the name of its test."""
    tests = {name: getattr(test_versions, name) for name in dir(test_versions)}
    return {
        name: (test.__doc__ or "").partition("\n")[0].removesuffix(".")
        for name, test in sorted(tests.items(), key=lambda item: _line(item[1]))
        if name.startswith("test_")
    }


def _line(value: object) -> int:
    code = getattr(value, "__code__", None)
    return 0 if code is None else int(code.co_firstlineno)


def results(report: Path) -> dict[str, str]:
    """Return the result of each test in a JUnit report.

    Raises OSError if there is no report, because the tests have not run.
    """
    found = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        refused = any(one.get("name") == "refused" for one in case.iterfind("properties/property"))
        failed = case.find("failure") is not None or case.find("error") is not None
        found[case.attrib["name"]] = FAILS if failed else REFUSED if refused else WORKS
    return found


def table(versions: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of features by version."""
    lines = [
        "| | " + " | ".join(f"Spark {version}" for version in versions) + " |",
        "| --- |" + " --- |" * len(versions),
    ]
    for name, title in features().items():
        cells = " | ".join(found.get(name, "not run") for found in versions.values())
        lines.append(f"| {title} | {cells} |")
    return "\n".join(lines) + "\n"


def environments_table(
    versions: Mapping[str, Mapping[str, str]], environments: Sequence[PythonEnvironment]
) -> str:
    """Return the table of environments by version, whose results are compared with ``versions``."""
    lines = [
        "| Python | pandas | " + " | ".join(f"Spark {version}" for version in versions) + " |",
        "| --- | --- |" + " --- |" * len(versions),
    ]
    for environment in environments:
        cells = [
            _compare(environment.report(version), expected)
            for version, expected in versions.items()
        ]
        lines.append(
            f"| {environment.python} | {PANDAS[environment.pandas]} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines) + "\n"


def _compare(report: Path, expected: Mapping[str, str]) -> str:
    """Return ``same``, the features with other results, or ``not tried`` without a report."""
    if not report.exists():
        return "not tried"
    found = results(report)
    different = [
        f"{title}: {found.get(name, 'not run')}"
        for name, title in features().items()
        if found.get(name) != expected.get(name)
    ]
    return "; ".join(different) or "same"


def write_table(page: str, mark: str, text: str) -> str:
    """Return the page with another table after a mark."""
    head, _, rest = page.partition(mark)
    _, _, tail = rest.partition("\n\n")
    return f"{head}{mark}{text}\n{tail}"


def main(versions: Sequence[str]) -> int:
    """Write the table of these versions into the page; return the exit code."""
    found = {
        version: results(ROOT / "build" / f"spark-{version}" / "tests.xml") for version in versions
    }
    page = write_table(PAGE.read_text(), MARK, table(found))
    text = environments_table(found, ENVIRONMENTS)
    PAGE.write_text(write_table(page, ENVIRONMENTS_MARK, text))
    return 0 if all(FAILS not in one.values() for one in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
