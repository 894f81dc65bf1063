"""Spark's packages: their repository, their folder, and errors about them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from statestore.spark.jars import IVY, IVY_SETTINGS, resolver_problem, resolver_settings

REFUSED = """
:::: WARNINGS
		module not found: io.delta#delta-spark_4.2_2.13;4.4.0
:::: ERRORS
	Server access error at url http://host/delta.pom (java.net.ConnectException: Connection refused)

	Server access error at url http://host/delta.jar (java.net.ConnectException: Connection refused)

Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: io.delta: not found]
	at org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:539)
"""
WITHOUT_JAR = """
		[NOT FOUND  ] io.delta#delta-spark_4.2_2.13;4.4.0!delta-spark_4.2_2.13.jar (2ms)
Exception in thread "main" java.lang.RuntimeException: [download failed: io.delta!delta.jar]
"""


def test_the_error_has_the_resolvers_reason() -> None:
    assert resolver_problem(REFUSED) == (
        "unresolved dependency: io.delta: not found, no answer from http://host/delta.pom "
        "(java.net.ConnectException: Connection refused)"
    )
    assert resolver_problem(WITHOUT_JAR) == "download failed: io.delta!delta.jar"


def test_another_failure_has_no_resolver_reason() -> None:
    assert resolver_problem("java.lang.RuntimeException: [nonsense]") is None


def test_jars_are_kept_in_the_python_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    settings = resolver_settings()
    folder = tmp_path / "share" / "statestore" / "ivy"
    assert settings == {
        IVY: str(folder),
        IVY_SETTINGS: (folder / "ivysettings.xml").as_uri(),
    }


def test_a_read_only_environment_keeps_no_jars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert resolver_settings()[IVY] == str(tmp_path / "cache" / "statestore" / "ivy")


def test_a_mirror_is_passed_as_spark_expects_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DEFAULT_ARTIFACT_REPOSITORY", raising=False)
    resolver_settings(tmp_path)
    file = tmp_path / "ivysettings.xml"
    assert 'root="https://repo1.maven.org/maven2/"' in file.read_text()
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "https://mirror/?a=1&b=2")
    resolver_settings(tmp_path)
    assert 'root="https://mirror/?a=1&amp;b=2"' in file.read_text()
    assert [*tmp_path.iterdir()] == [file]
