"""Run Prometheus, and promtool, which checks and tests its rules.

::

    with prometheus_server(directory, config) as address:
        ...

The programs are those of this machine, or of Debian's or Ubuntu's package, which ``python -m
tests.servers.prometheus`` unpacks into a folder of this Python environment. Nothing is installed.
The server listens only on the loopback address, on a free port. It is killed when the block ends,
and also if this process dies.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from statestore.errors import MissingDependencyError
from tests.servers.process import free_ports, log_tail, running, wait_for

__all__ = ["prometheus_server", "run_promtool"]

_PACKAGE = "prometheus"
_PROGRAMS = ("prometheus", "promtool")
_FOLDER = Path(sys.prefix) / "share" / "statestore" / "prometheus"
_LOG = "prometheus.log"
_START_SECONDS = 60
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def prometheus_server(directory: Path, config: str) -> Iterator[str]:
    """Run a server with a configuration in YAML until the block ends; yield its address.

    Raises MissingDependencyError without the program, or StorageError with the end of its log.
    """
    (port,) = free_ports(1)
    (directory / "prometheus.yml").write_text(config, encoding="utf-8")
    command = [
        _program("prometheus"),
        *("--config.file", "prometheus.yml", "--storage.tsdb.path", "data"),
        *("--web.listen-address", f"127.0.0.1:{port}", "--log.level", "warn"),
    ]
    address = f"http://127.0.0.1:{port}"
    with running(command, directory=directory, log=_LOG) as process:
        ready = f"{address}/-/ready"
        if not wait_for(
            process, lambda: _HTTP.open(ready, timeout=10).close(), seconds=_START_SECONDS
        ):
            raise log_tail(directory / _LOG, "Prometheus")
        yield address


def run_promtool(*arguments: str, folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool in a folder, with a text as its input; return its output and exit code.

    Raises MissingDependencyError without the program.
    """
    return subprocess.run(
        [_program("promtool"), *arguments],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def _program(name: str) -> str:
    unpacked = _FOLDER / name
    program = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    if program is None:
        raise MissingDependencyError(f"{name} is missing; fetch it with: make .venv/.prometheus")
    return program


def _is_complete() -> bool:
    return all(shutil.which(name) or (_FOLDER / name).exists() for name in _PROGRAMS)


def main() -> int:
    """Fetch and unpack the programs unless this machine has them; return the exit code."""
    if _is_complete():
        return 0
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        print("Prometheus is missing; install it, with its promtool", file=sys.stderr)
        return MissingDependencyError.exit_code
    with TemporaryDirectory() as folder:
        try:
            _run("apt-get", "download", _PACKAGE, folder=folder)
            for package in Path(folder).glob("*.deb"):
                _run("dpkg", "-x", package.name, ".", folder=folder)
        except subprocess.CalledProcessError as error:
            reason = " ".join(error.stderr.split())[-300:]
            print(
                f"Prometheus could not be fetched ({reason}); run apt-get update", file=sys.stderr
            )
            return error.returncode
        _FOLDER.mkdir(parents=True, exist_ok=True)
        for name in _PROGRAMS:
            shutil.move(Path(folder) / "usr" / "bin" / name, _FOLDER / name)
    return 0


def _run(*command: str, folder: str) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
