"""A prefix of a bucket, where a conditional put is the commit."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote, urlsplit

import fsspec

from statestore.errors import InvalidArgumentError, MissingDependencyError
from statestore.storage.base import Listed, NewFile, inside, refuse_credentials
from statestore.storage.s3_requests import (
    S3Reader,
    S3Writer,
    attempts_of,
    patient,
    s3_code,
    s3_errors,
    whole,
)

__all__ = [
    "DEFAULT_STREAMS",
    "S3Storage",
    "delta_settings",
    "s3a_settings",
]


# What s3fs was told about a bucket, in the words of Hadoop's ``s3a``, for Spark's own access.
#
# The settings hold secrets. They go into the Hadoop configuration of a running Spark, for this
# bucket alone; never into Spark's own, which is shown, logged and listed.


_HADOOP = "org.apache.hadoop.fs.s3a"


def s3a_settings(bucket: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of ``s3a`` for a bucket; none for what the options leave open."""
    client = options.get("client_kwargs") or {}
    settings = _credentials(options)
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    if endpoint:
        settings["endpoint"] = str(endpoint)
        settings["connection.ssl.enabled"] = str(urlsplit(endpoint).scheme != "http").lower()
        # Servers other than Amazon's mostly know buckets by path alone.
        settings["path.style.access"] = "true"
    region = client.get("region_name")
    if region or endpoint:
        settings["endpoint.region"] = str(region or "us-east-1")
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def _credentials(options: Mapping[str, Any]) -> dict[str, str]:
    """Return who asks; the provider too, or keys of the environment would mix with these."""
    if options.get("anon"):
        return {"aws.credentials.provider": f"{_HADOOP}.AnonymousAWSCredentialsProvider"}
    key = options.get("key") or options.get("username")
    secret = options.get("secret") or options.get("password")
    if not (key and secret):
        provider = f"{_HADOOP}.auth.ProfileAWSCredentialsProvider"
        name = options.get("profile")
        return {"aws.credentials.provider": provider, "auth.profile.name": name} if name else {}
    settings = {"access.key": str(key), "secret.key": str(secret)}
    if options.get("token"):
        settings["session.token"] = str(options["token"])
        settings["aws.credentials.provider"] = f"{_HADOOP}.TemporaryAWSCredentialsProvider"
    else:
        settings["aws.credentials.provider"] = f"{_HADOOP}.SimpleAWSCredentialsProvider"
    return settings


_GIVEN = (("key", "username"), ("secret", "password"), ("token", "token"))


def delta_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of delta-rs's object store; a commit is a conditional put there too.

    Credentials are found as s3fs finds them: in the options, a profile, the environment, a role.
    """
    import botocore.session  # s3fs brings it

    client = options.get("client_kwargs") or {}
    session = botocore.session.Session(profile=options.get("profile"))
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    region = client.get("region_name") or session.get_config_variable("region") or "us-east-1"
    settings = {"aws_conditional_put": "etag", "aws_region": str(region)}
    if endpoint:
        settings["aws_endpoint_url"] = str(endpoint)
        settings["aws_allow_http"] = str(urlsplit(endpoint).scheme == "http").lower()
    if options.get("anon"):
        return settings | {"aws_skip_signature": "true"}
    given = [options.get(one) or options.get(other) for one, other in _GIVEN]
    if not (given[0] and given[1]) and (found := session.get_credentials()) is not None:
        given = [*found.get_frozen_credentials()]
    named = zip(("access_key_id", "secret_access_key", "session_token"), given, strict=False)
    return settings | {f"aws_{name}": str(value) for name, value in named if value}


_PUT = "statestore-put"
_PUTS = 5
# S3 takes 10,000 parts of 5 MiB or more: one file of a store holds up to 80 GB.
_PART_BYTES = 8 * 2**20
_MOST_COPIED_BYTES = 5 * 2**30
_READ_AHEAD_BYTES = 4 * 2**20
DEFAULT_STREAMS = 16
_MOST_STREAMS = 1024
# Closing a connection that a forked process inherited would close its parent's; so none is dropped.
_HELD: list[Any] = []
_UPLOAD = re.compile(r"(|.*/)\.([^/]+)\.upload-([^/]+)")
# What servers answer that do not let this client see uploads, or know of none.
_UNLISTED = {"AccessDenied", "403", "MethodNotAllowed", "405", "NotImplemented", "501"}
_log = logging.getLogger(__name__)


class S3Storage:
    """A prefix of a bucket, through s3fs; each call sees what other writers did before it.

    What fails in passing is tried again, a few times and for seconds (``s3_requests.py``).

    Fork-safe, and pickled with its options: a worker gets the credentials it was given here.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any], streams: int = DEFAULT_STREAMS
    ) -> None:
        """Take an ``s3://`` (or ``s3a://``) URL and s3fs options; nothing is read yet.

        ``streams`` is how many ranges of objects are asked for at once. Raises InvalidArgumentError
        for fewer than one, or when a URL holds credentials, which would end up in messages.
        """
        if type(streams) is not int or not 1 <= streams <= _MOST_STREAMS:
            raise InvalidArgumentError(
                f"parallel_streams lies in 1..{_MOST_STREAMS}, not {streams!r}"
            )
        refuse_credentials(url)
        for some in (options, options.get("client_kwargs") or {}):
            refuse_credentials(str(some.get("endpoint_url")), is_endpoint=True)
        self._prefix = url.partition("://")[2].strip("/")
        if not self._prefix:
            raise InvalidArgumentError("a store on S3 needs a bucket: s3://bucket/prefix")
        # A cached listing would hide what others wrote; more than one request at a time is of no
        # use for objects as small as ours, and makes s3fs ask for the size of each before.
        options = patient({"max_concurrency": 1, **options, "use_listings_cache": False})
        # botocore keeps ten connections, and the other requests would wait for one of them.
        connections = {"max_pool_connections": max(streams, 10)}
        options["config_kwargs"] = connections | options["config_kwargs"]
        self._options, self._attempts = options, attempts_of(options)
        self.streams = streams
        self.url = f"s3://{self._prefix}"
        self._open_filesystem()

    def __repr__(self) -> str:
        return f"S3Storage({self.url!r})"

    def _open_filesystem(self) -> None:
        try:
            self._opened: Any = fsspec.filesystem("s3", **self._options)
        except ImportError as error:
            raise MissingDependencyError(
                "a store on S3 needs s3fs: pip install 'statestore[s3]'"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"the storage options do not fit: {error}") from error
        # botocore repeats a request; both of them would multiply (s3_requests.py).
        self._opened.retries = 1
        self._process = os.getpid()
        if self._opened not in _HELD:
            _HELD.append(self._opened)

    @property
    def _fs(self) -> Any:
        """The connection of this process: one that a fork inherited is another's."""
        if self._process != os.getpid():
            self._open_filesystem()
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind: a worker opens its own."""
        return {key: value for key, value in vars(self).items() if key != "_opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open a connection of this process."""
        vars(self).update(state)
        self._open_filesystem()

    def read(self, name: str) -> bytes:
        """Return the bytes of an object."""
        with self._errors("read", name):
            cat = functools.partial(self._fs.cat_file, self._key(name))
            return cast(bytes, whole(cat, self._attempts))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of an object, in one request."""
        with self._errors("read", name):
            if start >= stop:
                return b""
            cat = functools.partial(self._fs.cat_file, self._key(name), start=start, end=stop)
            try:
                return cast(bytes, whole(cat, self._attempts))
            except OSError as error:
                if s3_code(error) not in ("InvalidRange", "416"):  # it ends before
                    raise
                return b""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put with ``If-None-Match: *``; S3 answers 412 to all but one.

        A put whose answer was lost is sent again by botocore, and meets itself: each carries a
        mark that tells its own object from another writer's.
        """
        mark = uuid.uuid4().hex
        with self._errors("write", name):
            for attempt in itertools.count(1):
                try:
                    self._call(
                        "put_object", name, Body=data, IfNoneMatch="*", Metadata={_PUT: mark}
                    )
                    return True
                except OSError as error:
                    # 409: another put of this name is under way, and may yet fail.
                    if s3_code(error) == "ConditionalRequestConflict" and attempt < _PUTS:
                        continue
                    if s3_code(error) not in ("PreconditionFailed", "412"):
                        raise
                break
            try:
                return bool(self._call("head_object", name)["Metadata"].get(_PUT) == mark)
            except FileNotFoundError:
                return False

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all objects below a folder; markers of folders are left out."""
        with self._errors("list", folder):
            names = [name for page in self._pages(folder) for name in page]
        return tuple(sorted(name for name in names if not name.rpartition("/")[2].startswith(".")))

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Return all objects below a folder; their time is the server's.

        An upload that has not ended is a hidden one, of no length, and :meth:`delete` ends it.
        """
        with self._errors("list", folder):
            found = [item for page in self._objects(folder) for item in page]
            found += self._uploads(folder)
        return tuple(sorted(item for item in found if not _is_marker(item.name)))

    def is_empty(self) -> bool:
        """Return whether no object has this prefix, hidden ones aside; mostly one request."""
        with self._errors("list", ""):
            return all(name.startswith(".") for page in self._pages("", 50) for name in page)

    def delete(self, name: str) -> None:
        """Remove an object, or end an upload; S3 does not mind when there is none."""
        upload = _UPLOAD.fullmatch(name)
        with self._errors("delete", name):
            if upload is None:
                self._call("delete_object", name)
                return
            try:
                self._call(
                    "abort_multipart_upload", upload[1] + upload[2], UploadId=unquote(upload[3])
                )
            except OSError as error:
                if s3_code(error) != "NoSuchUpload":
                    raise

    def size(self, name: str) -> int:
        """Return an object's length in bytes."""
        with self._errors("read", name):
            try:
                return int(self._call("head_object", name)["ContentLength"])
            except FileNotFoundError:
                self._bucket_exists()
                raise

    def renew(self, old: str, new: str) -> bool:
        """Let the server copy the object, unless it is larger than one request copies."""
        if self.size(old) > _MOST_COPIED_BYTES:
            return False
        bucket, key, _ = self._fs.split_path(self._key(old))
        with self._errors("read", old):
            self._call("copy_object", new, CopySource={"Bucket": bucket, "Key": key})
        return True

    def open_write(self, name: str) -> NewFile:
        """Return an object to write, sent in parts; it exists once it is closed."""
        call = functools.partial(self._call, name=name)
        return S3Writer(call, self._full(name), _PART_BYTES, self._attempts)

    def open_read(self, name: str) -> BinaryIO:
        """Return an object to read, fetched by byte ranges as it is read."""
        size = self.size(name)
        with self._errors("read", name):
            file = self._fs.open(self._key(name), "rb", block_size=_READ_AHEAD_BYTES, size=size)
            return cast(BinaryIO, S3Reader(file, self._full(name), self._attempts))

    def sync(self, names: Iterable[str]) -> None:
        """Do nothing: an object that exists is durable."""

    def native_path(self, name: str) -> str | None:
        """Return None: there is no path."""
        return None

    def spark_url(self, name: str) -> str:
        """Return an ``s3a:`` URL, as hadoop-aws reads it."""
        return f"s3a://{self._key(name)}"

    def hadoop_settings(self) -> dict[str, str]:
        """Return the options in ``s3a``'s words, for this bucket alone."""
        return s3a_settings(self._prefix.partition("/")[0], self._options)

    def delta_options(self) -> dict[str, str]:
        """Return the options in delta-rs's words, with the credentials that s3fs goes by now."""
        return delta_settings(self._options)

    def _errors(self, action: str, name: str) -> AbstractContextManager[None]:
        return s3_errors(action, self._full(name), self._attempts)

    def _call(self, method: str, name: str, **arguments: Any) -> dict[str, Any]:
        bucket, key, _ = self._fs.split_path(self._key(name))
        return cast(dict[str, Any], self._fs.call_s3(method, Bucket=bucket, Key=key, **arguments))

    def _pages(self, folder: str, page: int = 1000) -> Iterator[tuple[str, ...]]:
        for items in self._objects(folder, page):
            yield tuple(item.name for item in items if not _is_marker(item.name))

    def _objects(self, folder: str, page: int = 1000) -> Iterator[tuple[Listed, ...]]:
        root, wanted = self._below(folder)
        while True:
            found = self._fs.call_s3("list_objects_v2", MaxKeys=page, **wanted)
            yield tuple(_listed(item, root) for item in found.get("Contents", ()))
            if not found["IsTruncated"]:
                return
            wanted["ContinuationToken"] = found["NextContinuationToken"]

    def _uploads(self, folder: str) -> Iterator[Listed]:
        """Yield the uploads that have not ended, as hidden files beside their names; none where
        nobody may see them.
        """
        root, wanted = self._below(folder)
        while True:
            try:
                found = self._fs.call_s3("list_multipart_uploads", **wanted)
            except OSError as error:
                if s3_code(error) not in _UNLISTED:
                    raise
                _log.info("uploads that have not ended cannot be listed: %s", error)
                return
            for item in found.get("Uploads", ()):
                folder, slash, file = item["Key"][len(root) :].rpartition("/")
                name = f"{folder}{slash}.{file}.upload-{quote(item['UploadId'], safe='')}"
                yield Listed(name, 0, _milliseconds(item["Initiated"]))
            if not found.get("IsTruncated") or "NextKeyMarker" not in found:
                return  # some servers do not say how to go on: the rest is seen when these are gone
            wanted["KeyMarker"] = found["NextKeyMarker"]
            wanted["UploadIdMarker"] = found["NextUploadIdMarker"]

    def _below(self, folder: str) -> tuple[str, dict[str, str]]:
        """Return what keys begin with here, and how those below a folder are asked for."""
        bucket, root, _ = self._fs.split_path(self._prefix)
        root = f"{root}/" if root else ""
        return root, {"Bucket": bucket, "Prefix": f"{root}{inside(folder)}/" if folder else root}

    def _bucket_exists(self) -> None:
        """Raise when not even the bucket exists, which the answer about an object did not say."""
        next(self._pages("", 1))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{inside(name)}" if name else self._prefix

    def _full(self, name: str) -> str:
        return f"s3://{self._key(name)}"


def _is_marker(name: str) -> bool:
    """Whether the object only stands for a folder, or for the prefix itself."""
    return not name or name.endswith("/")


def _listed(item: Mapping[str, Any], root: str) -> Listed:
    name, modified_ms = item["Key"][len(root) :], _milliseconds(item["LastModified"])
    return Listed(name, int(item["Size"]), modified_ms)


def _milliseconds(when: datetime) -> int:
    return int(when.timestamp() * 1000)
