"""Find a Java that runs Spark 4.2, or say in one sentence what to install on this system.

:func:`find_java` only searches: it returns a :class:`JavaHome` or a :class:`JavaProblem`, never
raises, and imports only the standard library. This file therefore also runs before anything is
installed::

    $ python3 statestore/spark/java.py
    /usr/lib/jvm/java-17-openjdk-amd64

It prints the Java home and exits with 0. If there is a problem, it prints one sentence to stderr
and exits with 16, the exit code of :class:`statestore.errors.MissingDependencyError`, which
:mod:`statestore.spark.session` raises. Python searches a script's own directory first, so no module
in this directory may have the name of a standard library module.

Spark 4.2 runs on Java 17, 21 and 25. Before 25.0.3 the default garbage collector of Java 25 could
corrupt data, so these versions are refused. ``JAVA_HOME`` and the ``java`` on the path have
priority if they are suitable; otherwise 17 and 21 are preferred to newer versions. Spark also needs
the module ``jdk.incubator.vector``, which some reduced Java runtimes lack.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MISSING_DEPENDENCY = 16  # MissingDependencyError.exit_code; written out, see the module docstring
VECTOR_MODULE = "jdk.incubator.vector"
OLDEST, NEWEST = (17,), (26,)
DAMAGING = ((25,), (25, 0, 3))  # from, up to: G1 may move pinned objects
PREFERRED = (17, 21, 25)
PROBE_SECONDS = 30  # a cold JVM on a busy machine takes seconds; one that hangs must not hang us

INSTALLED_UNDER = (
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/usr/local/*jdk*",
    "/usr/local/opt/openjdk*",
    "/opt/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*",
    "/home/linuxbrew/.linuxbrew/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "~/.jdks/*/Contents/Home",
    "~/.gradle/jdks/*",
    "~/.asdf/installs/java/*",
    "~/.local/share/mise/installs/java/*",
    "C:/Program Files/Java/*",
    "C:/Program Files/Eclipse Adoptium/*",
    "C:/Program Files/Microsoft/jdk*",
    "C:/Program Files/Zulu/*",
)


@dataclass(frozen=True)
class JavaHome:
    """A Java that runs Spark: its home directory and its version, such as ``(17, 0, 15)``."""

    path: Path
    version: tuple[int, ...]


@dataclass(frozen=True)
class JavaProblem:
    """The reason why no Java can be used, and the command that installs one, as one sentence."""

    reason: str
    command: str

    def __str__(self) -> str:
        return f"{self.reason}; install Java 17 or 21 with: {self.command}"


def find_java(
    environ: Mapping[str, str] = os.environ,
    installed_under: Iterable[str] = INSTALLED_UNDER,
    probe_seconds: float = PROBE_SECONDS,
) -> JavaHome | JavaProblem:
    """Return the Java that can start Spark, or the reason why none can.

    ``installed_under`` are glob patterns of Java homes. They are tried when neither ``JAVA_HOME``
    nor the path has a suitable Java. A Java that does not print its version within
    ``probe_seconds`` is rejected.
    """
    refusals: list[str] = []
    for program in _configured_programs(environ):
        answer = _probe(program, probe_seconds)
        if isinstance(answer, JavaHome):
            return answer
        refusals.append(answer)
    homes: list[JavaHome] = []
    for program in _installed_programs(installed_under):
        answer = _probe(program, probe_seconds)
        if isinstance(answer, JavaHome):
            homes.append(answer)
        else:
            refusals.append(answer)
    if homes:
        return min(homes, key=_preference)
    reason = (
        refusals[0] if refusals else "Spark 4.2 requires Java 17 or newer, but no Java was found"
    )
    return JavaProblem(reason, install_command())


def install_command() -> str:
    """Return the command that installs a Java for Spark on this system."""
    if sys.platform == "darwin":
        return "brew install openjdk@17"
    if sys.platform == "win32":
        return "winget install EclipseAdoptium.Temurin.17.JDK"
    commands = {
        "apt-get": f"apt-get install -y openjdk-{_apt_version()}-jre-headless",
        "dnf": "dnf install -y java-21-openjdk-headless",
        "yum": "yum install -y java-17-openjdk-headless",
        "zypper": "zypper install -y java-17-openjdk-headless",
        "apk": "apk add openjdk17-jre-headless bash",
        "pacman": "pacman -S --noconfirm jre17-openjdk-headless",
    }
    if _os_release().get("ID") == "amzn":
        commands["dnf"] = commands["yum"] = "dnf install -y java-17-amazon-corretto-headless"
    sudo = "" if getattr(os, "geteuid", int)() == 0 else "sudo "
    for manager, command in commands.items():
        if shutil.which(manager):
            return sudo + command
    return "your package manager, or an archive from https://adoptium.net unpacked into ~/.jdks"


def main() -> int:
    """Print the Java home, or the problem on stderr. Return the exit code."""
    answer = find_java()
    if isinstance(answer, JavaHome):
        print(answer.path)
        return 0
    print(answer, file=sys.stderr)
    return MISSING_DEPENDENCY


def _configured_programs(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the ``java`` programs that the user chose: ``JAVA_HOME``, then the path."""
    if home := environ.get("JAVA_HOME"):
        yield _program(Path(home))
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path)


def _installed_programs(patterns: Iterable[str]) -> Iterator[Path]:
    """Yield every ``java`` program under the patterns once, even if several links lead to it."""
    programs: set[Path] = set()
    for pattern in patterns:
        try:
            path = Path(pattern).expanduser()
        except RuntimeError:  # no HOME, and a user whom the system does not know
            continue
        # glob() needs a relative pattern: split the root off, "/" or "C:/".
        for home in sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))):
            program = _program(home)
            if program.is_file() and program.resolve() not in programs:
                programs.add(program.resolve())
                yield program


def _program(home: Path) -> Path:
    return home / "bin" / ("java.exe" if sys.platform == "win32" else "java")


def _probe(program: Path, seconds: float) -> JavaHome | str:
    """Run ``program`` and return its home, or a clause that says why it cannot be used."""
    # Ask for java.home: a shim on the path (jenv, macOS, alternatives) is not in the Java home.
    text = _output(program, seconds, "-XshowSettings:properties", "-version")
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    version = re.search(r'version "(\d+(?:\.\d+)*)', text)
    if home is None or version is None:
        return f"{program} does not {'run' if program.exists() else 'exist'}"
    numbers = tuple(int(part) for part in version[1].split("."))
    this = f"Java {version[1]} in {home[1]}"
    if numbers < OLDEST:
        return f"{this} is too old for Spark 4.2"
    if numbers >= NEWEST:
        return f"{this} is newer than Spark 4.2 supports"
    if DAMAGING[0] <= numbers < DAMAGING[1]:
        return f"{this} can corrupt data under Spark 4.2 (25.0.3 and later are safe)"
    if VECTOR_MODULE not in _output(program, seconds, "--list-modules"):
        return f"{this} lacks the module {VECTOR_MODULE}, which Spark 4.2 requires"
    return JavaHome(Path(home[1]), numbers)


def _output(program: Path, seconds: float, *arguments: str) -> str:
    """Return the output of ``program``; empty if it cannot be run or does not end."""
    command = [str(program), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def _preference(java: JavaHome) -> tuple[int, tuple[int, ...]]:
    """Sort 17, 21, 25, then the versions between; within a version the newest update first."""
    major = java.version[0]
    rank = PREFERRED.index(major) if major in PREFERRED else len(PREFERRED)
    return rank, tuple(-part for part in java.version)


def _apt_version() -> int:
    """Return 21 from Debian 13 and Ubuntu 24 on, otherwise 17: older ones may not have 21."""
    release = _os_release()
    newest_with_17 = {"debian": 12, "ubuntu": 23}.get(release.get("ID", ""), 0)
    number = re.match(r"\d+", release.get("VERSION_ID", ""))
    # Debian's testing and unstable have no version number.
    return 17 if number and int(number[0]) <= newest_with_17 else 21


def _os_release() -> dict[str, str]:
    """Return ``/etc/os-release`` as a mapping; empty if the file is missing."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value.strip('"') for name, _, value in pairs}


if __name__ == "__main__":
    raise SystemExit(main())
