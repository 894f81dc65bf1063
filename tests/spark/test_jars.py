"""Spark's packages: their repository, their folder, and errors about them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from statestore.errors import MissingDependencyError
from statestore.spark.jars import (
    IVY,
    IVY_SETTINGS,
    PACKAGES,
    launch_jvm,
    proxy_properties,
    refuse_damaged_jars,
    resolver_problem,
    resolver_settings,
    stop_jvm,
)
from statestore.spark.session import java_environment

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


@pytest.mark.parametrize("cache", ["", "cache"])
def test_jars_without_a_folder_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: str
) -> None:
    """The environment is read-only, and either the user has no home or the cache is a file."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "cache").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setenv("XDG_CACHE_HOME", cache and str(tmp_path / cache))
    with pytest.raises(MissingDependencyError, match=r"set XDG_CACHE_HOME to a folder"):
        resolver_settings()


def test_an_interrupted_jar_is_refused(tmp_path: Path) -> None:
    jar = tmp_path / "50 % of ivy" / "jars" / "some.jar"
    jar.parent.mkdir(parents=True)
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("a class", bytes(1000))
    refuse_damaged_jars([jar.as_uri(), "", "https://host/other.jar"])
    os.truncate(jar, 500)
    with pytest.raises(MissingDependencyError) as caught:
        refuse_damaged_jars([jar.as_uri()])
    assert str(caught.value).startswith(f"{jar} is damaged: ")
    assert f"delete the folder {jar.parent.parent}, and" in str(caught.value)


PROXIES = ("http_proxy", "https_proxy", "no_proxy")


@pytest.mark.parametrize(
    ("variables", "properties"),
    [
        ({"NO_PROXY": "host"}, {}),
        (
            {"HTTPS_PROXY": "http://me:secret@proxy:3128", "NO_PROXY": "nexus, .corp.example"},
            {
                "https.proxyHost": "proxy",
                "https.proxyPort": "3128",
                "http.nonProxyHosts": "localhost|127.*|[::1]"
                "|nexus|*.nexus|corp.example|*.corp.example",
            },
        ),
        (
            {"HTTP_PROXY": "proxy:1", "https_proxy": "http://other"},
            {
                "http.proxyHost": "proxy",
                "http.proxyPort": "1",
                "https.proxyHost": "other",
                "https.proxyPort": "80",
                "http.nonProxyHosts": "localhost|127.*|[::1]",
            },
        ),
    ],
)
def test_java_is_told_the_proxies(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], properties: dict[str, str]
) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_properties() == properties


class Proxy(SimpleHTTPRequestHandler):
    """A proxy that answers for every host with files of one folder."""

    def do_GET(self) -> None:
        self.path = urlsplit(self.path).path
        super().do_GET()

    def do_HEAD(self) -> None:
        self.path = urlsplit(self.path).path
        super().do_HEAD()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def proxy(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Proxy, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.long
@pytest.mark.spark
def test_packages_come_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own connections do not use it, and a jar that was cut short is noticed."""
    package = tmp_path / "mirror" / "some" / "thing" / "1"
    package.mkdir(parents=True)
    (package / "thing-1.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>some</groupId>"
        "<artifactId>thing</artifactId><version>1</version></project>"
    )
    with zipfile.ZipFile(package / "thing-1.jar", "w") as archive:
        archive.writestr("a class", bytes(1000))
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://repository.invalid/")
    java_environment("local")
    settings = {PACKAGES: "some:thing:1", **resolver_settings(tmp_path / "ivy")}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with proxy(tmp_path / "mirror") as address:
        monkeypatch.setenv("http_proxy", address)
        gateway = launch_jvm(settings, pipes)
        jvm: Any = gateway.jvm
        assert jvm.java.lang.System.getProperty("http.proxyHost") is None
        stop_jvm(gateway)
    (jar,) = (tmp_path / "ivy" / "jars").iterdir()
    os.truncate(jar, 50)
    with pytest.raises(MissingDependencyError, match=r"some_thing-1\.jar is damaged"):
        launch_jvm(settings, pipes)
