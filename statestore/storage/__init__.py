"""File access by name: the only package that knows where a store is, and that uses fsspec.

Each supported file system is one module, which implements ``base.Storage``. Other file systems are
refused when a store is opened. The contents of files do not belong here: documents are in
``format``, and rows are in ``rows`` and ``parquet``.

The module of a bucket is imported when one is opened: fsspec takes longer to import than most
commands take for a local store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from statestore.errors import InvalidArgumentError
from statestore.storage.addresses import refuse_credentials
from statestore.storage.base import (
    DEFAULT_STREAMS,
    Listed,
    Storage,
    is_full_disk,
    put_once,
    refuse_unsafe,
)
from statestore.storage.forwarding import MeteredStorage
from statestore.storage.local import LocalStorage
from statestore.storage.local_cache import CachedStorage

__all__ = [
    "DEFAULT_STREAMS",
    "CachedStorage",
    "Listed",
    "LocalStorage",
    "MeteredStorage",
    "Storage",
    "is_full_disk",
    "open_storage",
    "put_once",
    "refuse_credentials",
    "refuse_unsafe",
]


def open_storage(
    url: str,
    options: Mapping[str, Any] | None = None,
    streams: int = DEFAULT_STREAMS,
    *,
    of_store: bool = False,
) -> Storage:
    """Return the storage of a path or URL; ``options`` go to fsspec (credentials, endpoint, …).

    If ``of_store`` is true, symbolic links below a local folder are refused, unless the option
    ``follow_links`` is True. An object store reads at most ``streams`` ranges at the same time.
    Raises InvalidArgumentError for a file system that is not known to implement put-if-absent.
    """
    refuse_credentials(url)
    _refuse_mistyped(url)
    protocol, *rest = re.split("::|://", url, maxsplit=1)
    if not rest:
        protocol = "file"
    if protocol in ("file", "local"):
        return LocalStorage(url, follow_links=_follows_links(options or {}) or not of_store)
    if protocol in ("s3", "s3a"):
        from statestore.storage.s3 import S3Storage

        return S3Storage(url, options or {}, streams)
    if protocol in ("az", "abfs", "abfss"):
        from statestore.storage.azure import AzureStorage

        return AzureStorage(url, options or {}, streams)
    if protocol in ("gs", "gcs"):
        from statestore.storage.google import GoogleStorage

        return GoogleStorage(url, options or {}, streams)
    if protocol == "hdfs":
        from statestore.storage.hdfs import HdfsStorage

        return HdfsStorage(url, options or {}, streams)
    shown = f"{protocol}://" if protocol.isalnum() else "such a URL"
    raise InvalidArgumentError(
        f"a store cannot use {shown}: commits require that a file is put only if it is "
        "absent, which this file system is not known to support; use a local path, s3://, "
        "az://, abfss://, gs:// or hdfs://"
    )


# A path that begins with the name of a service and a colon, as in ``s3:/bucket/prod``. fsspec would
# treat it as a local folder.
_MISTYPED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?!//)(.*)", re.DOTALL)
_SERVICES = (
    "s3",
    "s3a",
    "s3n",
    "az",
    "abfs",
    "abfss",
    "wasb",
    "wasbs",
    "gs",
    "gcs",
    "hdfs",
    "dbfs",
)


def _refuse_mistyped(url: str) -> None:
    """Raise InvalidArgumentError for a path that was meant as a URL, with the correct form."""
    match = _MISTYPED.match(url)
    if match is None or match[1].lower() in ("file", "local"):
        return
    scheme, rest = match[1].lower(), match[2].lstrip("/")
    if scheme not in _SERVICES and not match[2].startswith("/"):
        return
    corrected = f"/dbfs/{rest}" if scheme == "dbfs" else f"{scheme}://{rest}"
    raise InvalidArgumentError(
        f"{url!r} is neither a path nor a URL, which has two slashes after the colon: did you "
        f"mean {corrected!r}? To use a local folder with this name, pass {'./' + url!r}"
    )


def _follows_links(options: Mapping[str, Any]) -> bool:
    """Return whether the storage options allow symbolic links below a local store."""
    follows = options.get("follow_links", False)
    if not isinstance(follows, bool):
        raise InvalidArgumentError(f"follow_links must be True or False, not {follows!r:.80}")
    return follows
