"""The tables of docs/compatibility.md are made from the reports of test runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark import environments
from tests.spark.compatibility import environments_table, features, results, write_table
from tests.spark.environments import PythonEnvironment


def write_report(report: Path, failed: str = "") -> None:
    cases = "".join(
        f'<testcase name="{name}">{"<failure/>" if name == failed else ""}</testcase>'
        for name in features()
    )
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")


def test_an_environment_is_compared_with_the_first_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path / "expected.xml")
    expected = results(tmp_path / "expected.xml")
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    environment = PythonEnvironment("3.13", "3")
    write_report(environment.report("4.0.5"))
    write_report(environment.report("4.1.4"), failed="test_changes")
    versions = dict.fromkeys(("4.0.5", "4.1.4", "4.2.1"), expected)
    row = environments_table(versions, [environment]).splitlines()[-1]
    title = features()["test_changes"]
    assert row == f"| 3.13 | 3.0.0 | same | {title}: fails | not tried |"


def test_a_python_that_is_not_installed_gets_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    assert not PythonEnvironment("3.99", "3").make()
    assert not (tmp_path / "build").exists()


def test_only_the_table_after_its_mark_is_replaced() -> None:
    page = "before\n<!-- a -->\n| old |\n\nafter\n"
    assert write_table(page, "<!-- a -->\n", "| new |\n") == page.replace("old", "new")
