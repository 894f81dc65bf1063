from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from statestore.errors import MissingDependencyError
from statestore.spark import java
from statestore.spark.java import JavaHome, JavaProblem, find_java

NOWHERE: tuple[str, ...] = ()

FAKE = """#!/bin/sh
case "$1" in
  --list-modules) echo java.base@{version}; echo "{module}" ;;
  *) {{ echo "    java.home = {home}"; echo 'openjdk version "{version}" 2025-04-15'; }} >&2 ;;
esac
"""


def fake_java(home: Path, version: str, module: str = "jdk.incubator.vector") -> Path:
    """Write a fake Java of this version that answers the two queries of the search."""
    return fake_program(home, FAKE.format(home=home, version=version, module=module))


def fake_program(home: Path, text: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(text)
    program.chmod(0o755)
    return home


def reason(answer: JavaHome | JavaProblem) -> str:
    assert isinstance(answer, JavaProblem)
    return answer.reason


def version(answer: JavaHome | JavaProblem) -> tuple[int, ...]:
    assert isinstance(answer, JavaHome)
    return answer.version


@pytest.mark.parametrize("numbers", ["17", "17.0.15", "21.0.4", "23.0.1", "25.0.3"])
def test_versions_that_spark_supports_are_accepted(tmp_path: Path, numbers: str) -> None:
    home = fake_java(tmp_path / "a jdk", numbers)
    expected = JavaHome(home, tuple(int(part) for part in numbers.split(".")))
    assert find_java({"JAVA_HOME": str(home)}, NOWHERE) == expected


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ("1.8.0_402", "Java 1.8.0 in {home} is too old for Spark 4.2"),
        ("11.0.2", "Java 11.0.2 in {home} is too old for Spark 4.2"),
        ("25", "can corrupt data"),
        ("25.0.2", "can corrupt data"),
        ("26.0.1", "Java 26.0.1 in {home} is newer than Spark 4.2 supports"),
    ],
)
def test_the_reason_for_rejecting_a_java_is_reported(
    tmp_path: Path, numbers: str, why: str
) -> None:
    home = fake_java(tmp_path / "jdk", numbers)
    assert why.format(home=home) in reason(find_java({"JAVA_HOME": str(home)}, NOWHERE))


def test_a_java_without_the_vector_module_does_not_fit(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jre", "17.0.9", module="java.sql")
    answer = find_java({"JAVA_HOME": str(home)}, NOWHERE)
    assert "lacks the module jdk.incubator.vector, which Spark 4.2 requires" in reason(answer)


def test_java_home_precedes_the_path_and_the_path_precedes_the_rest(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "25.0.3")
    path = fake_java(tmp_path / "path", "21.0.1")
    fake_java(tmp_path / "jvm" / "17", "17.0.9")
    rest = (str(tmp_path / "jvm" / "*"),)
    both = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert version(find_java(both, rest)) == (25, 0, 3)
    assert version(find_java({"PATH": both["PATH"]}, rest)) == (21, 0, 1)
    assert version(find_java({}, rest)) == (17, 0, 9)


def test_an_unsuitable_java_home_is_skipped(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "11.0.2")
    fake_java(tmp_path / "jvm" / "17", "17.0.9")
    answer = find_java({"JAVA_HOME": str(home)}, (str(tmp_path / "jvm" / "*"),))
    assert version(answer) == (17, 0, 9)


def test_versions_17_and_21_precede_newer_ones(tmp_path: Path) -> None:
    for numbers in ("25.0.3", "24.0.1", "21.0.1", "17.0.9", "17.0.15", "11.0.1"):
        fake_java(tmp_path / numbers, numbers)
    order = []
    while isinstance(answer := find_java({}, (str(tmp_path / "*"),)), JavaHome):
        order.append(".".join(map(str, answer.version)))
        shutil.rmtree(answer.path)
    assert order == ["17.0.15", "17.0.9", "21.0.1", "25.0.3", "24.0.1"]


def test_links_to_one_java_are_queried_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    home = fake_program(tmp_path / "jvm" / "jdk", f"#!/bin/sh\necho >> '{log}'\nexit 1\n")
    (tmp_path / "jvm" / "default").symlink_to(home)
    assert "does not run" in reason(find_java({}, (str(tmp_path / "jvm" / "*"),)))
    assert log.read_text() == "\n"


@pytest.mark.slow
def test_a_java_that_hangs_is_skipped(tmp_path: Path) -> None:
    home = fake_program(tmp_path / "jdk", "#!/bin/sh\nexec sleep 60\n")
    answer = find_java({"JAVA_HOME": str(home)}, NOWHERE, probe_seconds=0.2)
    assert "does not run" in reason(answer)


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    answer = find_java({"JAVA_HOME": str(tmp_path)}, NOWHERE)
    assert reason(answer) == f"{tmp_path}/bin/java does not exist"


def test_a_user_without_a_home_has_no_java_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for an unknown user
    assert "no Java was found" in reason(find_java({}, ("~/.jdks/*",)))


def test_without_java_the_error_says_how_to_install_it() -> None:
    answer = find_java({}, NOWHERE)
    assert reason(answer) == "Spark 4.2 requires Java 17 or newer, but no Java was found"
    assert "; install Java 17 or 21 with: " in str(answer)


@pytest.mark.parametrize(
    ("manager", "release", "user", "command"),
    [
        ("apt-get", ("debian", "12"), 1000, "sudo apt-get install -y openjdk-17-jre-headless"),
        ("apt-get", ("debian", "13"), 0, "apt-get install -y openjdk-21-jre-headless"),
        ("apt-get", ("debian", ""), 0, "apt-get install -y openjdk-21-jre-headless"),
        ("apt-get", ("ubuntu", "22.04"), 0, "apt-get install -y openjdk-17-jre-headless"),
        ("apt-get", ("ubuntu", "24.04"), 0, "apt-get install -y openjdk-21-jre-headless"),
        ("dnf", ("fedora", "42"), 1000, "sudo dnf install -y java-21-openjdk-headless"),
        ("dnf", ("amzn", "2023"), 0, "dnf install -y java-17-amazon-corretto-headless"),
        ("apk", ("alpine", "3.21"), 0, "apk add openjdk17-jre-headless bash"),
        ("pacman", ("arch", ""), 0, "pacman -S --noconfirm jre17-openjdk-headless"),
        ("none", ("nixos", "25.05"), 0, "your package manager, or an archive from"),
    ],
)
def test_the_install_command_fits_this_system(
    monkeypatch: pytest.MonkeyPatch,
    manager: str,
    release: tuple[str, str],
    user: int,
    command: str,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda name: name if name == manager else None)
    system = {"ID": release[0], "VERSION_ID": release[1]}
    monkeypatch.setattr(java, "_os_release", lambda: system)
    assert java.install_command().startswith(command)


@pytest.mark.parametrize(("platform", "command"), [("darwin", "brew "), ("win32", "winget ")])
def test_the_install_command_fits_other_systems(
    monkeypatch: pytest.MonkeyPatch, platform: str, command: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert java.install_command().startswith(command)


def test_the_script_prints_the_home(capsys: pytest.CaptureFixture[str]) -> None:
    assert java.main() == 0
    home = Path(capsys.readouterr().out.strip())
    assert (home / "bin" / "java").exists()


def test_the_script_prints_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "find_java", lambda: JavaProblem("none", "brew install java"))
    assert java.main() == MissingDependencyError.exit_code
    out, err = capsys.readouterr()
    assert (out, err) == ("", "none; install Java 17 or 21 with: brew install java\n")


@pytest.mark.slow
def test_the_script_runs_before_anything_is_installed() -> None:
    # -S: without installed packages. This would also detect a module next to the script that
    # shadows one of the standard library.
    command = [sys.executable, "-S", java.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_dir()
