"""Run Ceph's S3 gateway on this machine for tests: a monitor, an OSD and radosgw, one of each.

::

    with ceph_server(directory) as server:
        store = StateStore.open(server.url("my-store"), storage_options=server.options)

``python -m tests.servers.ceph`` fetches the programs. They are packages of Debian and Ubuntu, which
are unpacked into a folder of this Python environment, and nothing is installed. All processes
listen only on the loopback address, and are killed when the block ends or this process dies.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from statestore.errors import MissingDependencyError, StorageError
from tests.servers.process import free_ports, log_tail, running, wait_for
from tests.servers.s3_access import BUCKET, S3Access

__all__ = ["ceph_server"]

PACKAGES = ("ceph-mon", "ceph-osd", "radosgw")
FOLDER = Path(sys.prefix) / "share" / "statestore" / "ceph"
DONE = FOLDER / "complete"
_ARCHITECTURE = f"{os.uname().machine}-linux-gnu"
LIBRARIES = (
    FOLDER / "usr/lib" / _ARCHITECTURE,
    FOLDER / "lib" / _ARCHITECTURE,
    FOLDER / "usr/lib" / _ARCHITECTURE / "ceph",
)
# Debian's Python: the command `ceph` has extension modules for it.
PYTHON = "/usr/bin/python3"
START_SECONDS = 120

CONFIG = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{monitor}]
mon initial members = a
public addr = 127.0.0.1
keyring = keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon cluster log file = cluster.log
log file = $name.log
admin socket =
pid file =
run dir = .
mon data = mon
osd data = osd
osd memory target = 939524096
bluestore block size = 6442450944
rgw data = rgw
rgw frontends = beast endpoint=127.0.0.1:{gateway}
osd class dir = {libraries}/rados-classes
plugin dir = {libraries}/ceph
erasure code dir = {libraries}/ceph/erasure-code
osd erasure code plugins =
[osd]
keyring = osd/keyring
"""


@contextmanager
def ceph_server(directory: Path) -> Iterator[S3Access]:
    """Run Ceph with one bucket, ``BUCKET``, until the block ends.

    Raises MissingDependencyError without its programs, or StorageError with the end of a log.
    """
    if not DONE.exists():
        raise MissingDependencyError(f"{FOLDER} is not complete; fetch Ceph with: make .venv/.ceph")
    monitor, gateway = free_ports(2)
    server = S3Access(
        endpoint=f"http://127.0.0.1:{gateway}",
        access_key=secrets.token_hex(10),
        secret_key=secrets.token_hex(20),
    )
    fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
    for name in ("mon", "osd", "rgw"):
        (directory / name).mkdir()
    config = CONFIG.format(fsid=fsid, monitor=monitor, gateway=gateway, libraries=LIBRARIES[0])
    (directory / "ceph.conf").write_text(config)
    programs = _Programs(directory)
    rights = ("--cap", "mon", "allow *", "--cap", "osd", "allow *")
    programs.run("ceph-authtool", "keyring", "--create-keyring", "--gen-key", "-n", "mon.", *rights)
    programs.run("ceph-authtool", "keyring", "--gen-key", "-n", "client.admin", *rights)
    address = f"[v2:127.0.0.1:{monitor}]"
    programs.run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, "monmap")
    programs.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring")
    with ExitStack() as stack:
        stack.enter_context(programs.running("ceph-mon", "-i", "a"))
        programs.run("ceph", "osd", "new", osd, "0")
        osd_rights = ("mon", "allow profile osd", "osd", "allow *")
        keyring = programs.run("ceph", "auth", "get-or-create", "osd.0", *osd_rights)
        (directory / "osd" / "keyring").write_text(keyring)
        programs.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        stack.enter_context(programs.running("ceph-osd", "-i", "0"))
        process = stack.enter_context(programs.running("radosgw", "-n", "client.admin"))
        user = ("--uid", "tests", "--display-name", "tests")
        keys = ("--access-key", server.access_key, "--secret", server.secret_key)
        programs.run("radosgw-admin", "user", "create", *user, *keys)
        if not wait_for(process, lambda: server.make_bucket(BUCKET), seconds=START_SECONDS):
            raise log_tail(directory / "radosgw.log", "Ceph's S3 gateway")
        yield server


class _Programs:
    """The programs of Ceph, with one cluster's settings."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environment = os.environ | {
            "LD_LIBRARY_PATH": ":".join(map(str, LIBRARIES)),
            "PYTHONPATH": str(FOLDER / "usr/lib/python3/dist-packages"),
            "CEPH_CONF": str(directory / "ceph.conf"),
        }

    def run(self, name: str, *arguments: str) -> str:
        """Run a program to its end, and return its output."""
        done = subprocess.run(
            [*_program(name), *arguments],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if done.returncode:
            raise StorageError(f"{name} {' '.join(arguments[:2])} failed: {done.stderr[-1000:]}")
        return done.stdout

    def running(
        self, name: str, *arguments: str
    ) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run a server until the block ends."""
        return running(
            [*_program(name), "-f", *arguments],
            directory=self._directory,
            log=f"{name}.log",
            environment=self._environment,
        )


def _program(name: str) -> tuple[str, ...]:
    path = str(FOLDER / "usr/bin" / name)
    return (PYTHON, path) if name == "ceph" else (path,)


def main() -> int:
    """Fetch and unpack the programs and their libraries; return the exit code."""
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        print("Ceph is fetched from the packages of Debian or Ubuntu", file=sys.stderr)
        return MissingDependencyError.exit_code
    packages = FOLDER / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    try:
        said = _apt(packages, "install", "--simulate", "--no-install-recommends", *PACKAGES)
        missing = re.findall(r"^Inst (\S+)", said, re.MULTILINE)
        _apt(packages, "download", *missing)
        for package in packages.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, FOLDER], check=True)
    except subprocess.CalledProcessError as error:
        reason = " ".join((error.stderr or "").split())[-300:]
        print(f"Ceph could not be fetched ({reason}); run apt-get update", file=sys.stderr)
        return error.returncode
    shutil.rmtree(packages)
    DONE.touch()
    return 0


def _apt(folder: Path, *arguments: str) -> str:
    command = ["apt-get", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
