"""Run further real S3 servers on this machine for tests: S3Proxy, the Versity S3 Gateway, MinIO.

::

    with s3_zoo_server("minio", directory) as server:
        store = StateStore.open(server.url("my-store"), storage_options=server.options)

``python -m tests.servers.s3_zoo`` fetches the jars of S3Proxy. ``tests/servers/go_programs.py``
builds the other two. Each server listens only on the loopback address, on free ports, and keeps all
files in its directory. It accepts only the credentials that are created for this run. It is killed
when the block ends, and also if this process dies.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from statestore.spark.session import java_home
from tests.servers.go_programs import MINIO, VERSITY, program_of
from tests.servers.jars import JarSet, fetched, jars_of
from tests.servers.process import SHORT_LIVED_JVM, free_ports, log_tail, running, wait_for
from tests.servers.s3_access import BUCKET, S3Access

__all__ = ["COMPATIBLE", "KMS_KEY", "OLD_S3PROXY", "S3PROXY", "ZOO", "s3_zoo_server"]

S3PROXY = JarSet("s3proxy-4.1.0", ("org.gaul:s3proxy:4.1.0",))
# This version ignores the condition of a put, so a store must refuse it.
OLD_S3PROXY = JarSet("s3proxy-2.6.0", ("org.gaul:s3proxy:2.6.0",))
CONFIG, LOG_CONFIG, LOG = "s3proxy.properties", "logback.xml", "server.log"
START_SECONDS = 60
KMS_KEY = "statestore-tests"
"""The only key of the key service that "minio-kms" has."""

Command = tuple[list[str], Mapping[str, str]]


@contextmanager
def s3_zoo_server(name: str, directory: Path) -> Iterator[S3Access]:
    """Run the server ``name`` of ``ZOO`` with one bucket, ``BUCKET``, until the block ends.

    Raises MissingDependencyError without its program, or StorageError with the end of its log.
    """
    (port,) = free_ports(1)
    server = S3Access(
        endpoint=f"http://127.0.0.1:{port}",
        access_key=secrets.token_hex(10),
        secret_key=secrets.token_urlsafe(30),
    )
    (directory / "data").mkdir(parents=True, exist_ok=True)
    command, variables = ZOO[name](server, port, directory)
    environment = os.environ | dict(variables)
    with running(command, directory=directory, log=LOG, environment=environment) as process:
        if not wait_for(process, lambda: server.make_bucket(BUCKET), seconds=START_SECONDS):
            raise log_tail(directory / LOG, f"the S3 server {name}")
        yield server


def _versity(server: S3Access, port: int, directory: Path) -> Command:
    command = [program_of(VERSITY), "--port", f"127.0.0.1:{port}", "--quiet", "posix", "data"]
    return command, {
        "ROOT_ACCESS_KEY_ID": server.access_key,
        "ROOT_SECRET_ACCESS_KEY": server.secret_key,
    }


def _minio(server: S3Access, port: int, directory: Path) -> Command:
    command = [program_of(MINIO), "server", "--address", f"127.0.0.1:{port}", "data"]
    return command, {
        "MINIO_ROOT_USER": server.access_key,
        "MINIO_ROOT_PASSWORD": server.secret_key,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }


def _minio_with_kms(server: S3Access, port: int, directory: Path) -> Command:
    command, variables = _minio(server, port, directory)
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    return command, {**variables, "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{key}"}


def _s3proxy(server: S3Access, port: int, directory: Path) -> Command:
    return _s3proxy_of(S3PROXY, server, directory), {}


def _old_s3proxy(server: S3Access, port: int, directory: Path) -> Command:
    return _s3proxy_of(OLD_S3PROXY, server, directory), {}


def _s3proxy_of(jars: JarSet, server: S3Access, directory: Path) -> list[str]:
    settings = {
        "s3proxy.endpoint": server.endpoint,
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": server.access_key,
        "s3proxy.credential": server.secret_key,
        "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": "unused",
        "jclouds.credential": "unused",
        "jclouds.filesystem.basedir": str(directory / "data"),
    }
    (directory / CONFIG).touch(mode=0o600)
    (directory / CONFIG).write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    # The server's own level writes several lines for each packet.
    quiet = '<configuration><root level="warn"/></configuration>'
    (directory / LOG_CONFIG).write_text(quiet)
    path = ":".join(str(jar) for jar in jars_of(jars))
    return [
        *(str(java_home() / "bin" / "java"), "-Xmx256m", *SHORT_LIVED_JVM),
        *(f"-Dlogback.configurationFile={LOG_CONFIG}", "-cp", path),
        *("org.gaul.s3proxy.Main", "--properties", CONFIG),
    ]


COMPATIBLE = ("s3proxy", "versitygw", "minio")
"""The servers of ``ZOO`` whose conditional put is atomic."""

ZOO: Mapping[str, Callable[[S3Access, int, Path], Command]] = {
    "s3proxy": _s3proxy,
    "old-s3proxy": _old_s3proxy,
    "versitygw": _versity,
    "minio": _minio,
    "minio-kms": _minio_with_kms,
}


if __name__ == "__main__":
    raise SystemExit(fetched(S3PROXY, OLD_S3PROXY))
