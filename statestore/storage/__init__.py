"""Bytes by name: the only part that knows where a store lies, and the only home of fsspec.

A store needs of its file system: read, list, delete, write a new file, and ``put_if_absent``, which
makes a name appear whole or not at all, for exactly one of several writers. That last one is what
every commit rests on (I4), so it is ours per file system, not fsspec's generic check-then-write:

* a local (or mounted) file system: a temporary file, synced, then a hard link to its name;
* S3 and Azure: a conditional put (``If-None-Match: *``);
* Google: a conditional put (``ifGenerationMatch=0``);
* HDFS: a hidden file that is renamed, which fails when the name is taken.

Other file systems are refused when a store is opened, instead of being trusted; and of these, one
where it does not hold in fact is refused when a store is made (``base.py``). Errors of the
file system come out as StorageError with the cause kept, except FileNotFoundError, which says just
that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fsspec.utils import get_protocol

from statestore.errors import InvalidArgumentError
from statestore.storage.azure import AzureStorage
from statestore.storage.base import Listed, Storage, put_once, refuse_credentials, refuse_unsafe
from statestore.storage.cached import CachedStorage
from statestore.storage.google import GoogleStorage
from statestore.storage.hdfs import HdfsStorage
from statestore.storage.local import LocalStorage
from statestore.storage.metered import MeteredStorage
from statestore.storage.objects import DEFAULT_STREAMS
from statestore.storage.s3 import S3Storage

__all__ = [
    "DEFAULT_STREAMS",
    "AzureStorage",
    "CachedStorage",
    "GoogleStorage",
    "HdfsStorage",
    "Listed",
    "LocalStorage",
    "MeteredStorage",
    "S3Storage",
    "Storage",
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
    """Return the storage behind a path or URL; ``options`` go to fsspec (credentials, endpoint, …).

    If it is that ``of_store``, symbolic links below a local folder are refused, unless the option
    ``follow_links`` is True.
    Of an object store at most ``streams`` ranges are read at once. Raises InvalidArgumentError for
    a file system on which put-if-absent is not known to hold.
    """
    refuse_credentials(url)
    _refuse_mistyped(url)
    protocol = get_protocol(url)
    if protocol in ("file", "local"):
        return LocalStorage(url, follow_links=_follows_links(options or {}) or not of_store)
    if protocol in ("s3", "s3a"):
        return S3Storage(url, options or {}, streams)
    if protocol in ("az", "abfs", "abfss"):
        return AzureStorage(url, options or {}, streams)
    if protocol in ("gs", "gcs"):
        return GoogleStorage(url, options or {}, streams)
    if protocol == "hdfs":
        return HdfsStorage(url, options or {}, streams)
    shown = f"{protocol}://" if protocol.isalnum() else "such a URL"
    raise InvalidArgumentError(
        f"a store cannot lie on {shown}: it is not known to put a file only if it is absent, "
        "which commits rest on; use a local path, s3://, az://, abfss://, gs:// or hdfs://"
    )


# What begins with the name of a service and a colon, as in ``s3:/bucket/prod``: fsspec would take
# it for a local folder.
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
    """Raise InvalidArgumentError for a path that was meant as a URL; say how that is written."""
    found = _MISTYPED.match(url)
    if found is None or found[1].lower() in ("file", "local"):
        return
    scheme, rest = found[1].lower(), found[2].lstrip("/")
    if scheme not in _SERVICES and not found[2].startswith("/"):
        return
    meant = f"/dbfs/{rest}" if scheme == "dbfs" else f"{scheme}://{rest}"
    raise InvalidArgumentError(
        f"{url!r} is neither a path nor a URL, which has two slashes after the colon: did you mean "
        f"{meant!r}? A local folder of that name is {'./' + url!r}"
    )


def _follows_links(options: Mapping[str, Any]) -> bool:
    """Return whether links below a local store are followed, as its storage options say."""
    follows = options.get("follow_links", False)
    if not isinstance(follows, bool):
        raise InvalidArgumentError(f"follow_links is True or False, not {follows!r:.80}")
    return follows
