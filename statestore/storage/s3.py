"""S3 through s3fs: its requests, its errors, its timeouts and retries.

**Errors.** Not all errors of botocore, aiohttp and s3fs are OSError, and s3fs converts some of S3's
own errors to a bare EINVAL. None of these libraries is imported, so errors are identified by their
names.

**Timeouts and retries.** Two layers can retry: botocore (a request) and s3fs (a request and its
body). Together their attempts would multiply, and take half an hour to report a dead server. So
only botocore retries requests, and s3fs sends each once. If the body of an answer breaks off, which
botocore does not notice, this module retries it.

A dead server is reported within seconds: within 7 s if it refuses connections, within 27 s if it
does not answer them, within 47 s if it accepts requests but stays silent. (If a kept-alive
connection ends without an answer, aiohttp sends the request once more.) ``config_kwargs`` in the
storage options overrides each setting separately, by botocore's names.

**Other clients.** The options are converted to those of Hadoop's ``s3a`` and of delta-rs. They
contain secrets. They go into the Hadoop configuration of a running Spark, for this bucket only, and
never into Spark's own configuration, which is displayed, logged and listed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import fsspec

from statestore.errors import InvalidArgumentError
from statestore.storage.base import Listed
from statestore.storage.objects import MARK, ListingPage, ObjectStorage
from statestore.storage.requests import (
    ATTEMPTS,
    CONNECT_SECONDS,
    NOT_REACHED,
    READ_SECONDS,
    Failure,
    Upload,
    advice_of,
    retry,
)

# botocore's newer mode. It also retries all errors that AWS calls transient, and retries less often
# after many failures in a row.
_MODE = "standard"

# Errors of an answer that broke off, stalled, or is not valid XML.
_BROKEN_OFF = {
    # fsspec's error for a stalled body; without it, threads would wait forever.
    "FSTimeoutError",
    *("ClientPayloadError", "ResponseStreamingError", "AioReadTimeoutError"),
    *("IncompleteRead", "IncompleteReadError", "ResponseParserError"),
}


def with_retries(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return s3fs options with these timeouts and retries, unless the options set their own.

    Raises InvalidArgumentError when ``config_kwargs`` is not a table.
    """
    settings = options.get("config_kwargs") or {}
    if not isinstance(settings, Mapping):
        raise InvalidArgumentError(
            "the storage option config_kwargs must be a table of names and values"
        )
    config = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"mode": _MODE, "total_max_attempts": ATTEMPTS},
    }
    return {**options, "config_kwargs": config | dict(settings)}


def attempts_of(options: Mapping[str, Any]) -> int:
    """Return the maximum number of attempts per request in the options of :func:`with_retries`."""
    retries = options["config_kwargs"]["retries"]
    if not isinstance(retries, Mapping):  # botocore rejects it with its own message
        return 1
    # botocore's max_attempts does not count the first attempt.
    return int(retries.get("total_max_attempts", retries.get("max_attempts", ATTEMPTS - 1) + 1))


# Errors without an answer of the server, which were raised after retries.
_UNANSWERED = {
    *("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError"),
    *("ReadTimeoutError", "ProxyConnectionError", *_BROKEN_OFF),
}
_REFUSED = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403"),
    *("InvalidToken", "TokenRefreshRequired"),
}
_ADVICE = {
    "the bucket does not exist; create it, or check the URL": {"NoSuchBucket"},
    "the credentials have expired; provide new ones, or a profile or role that renews them": {
        "ExpiredToken"
    },
    (
        "the clock of this machine is wrong, so its signatures are rejected; synchronize it with "
        "NTP"
    ): {
        *("RequestTimeTooSkewed", "RequestExpired"),
    },
    (
        "pass the storage options key and secret, or set the variables AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY"
    ): {"NoCredentialsError", "PartialCredentialsError"},
    NOT_REACHED.format(endpoint="endpoint_url"): _UNANSWERED,
    "another put of the same object is in progress; try again": {"ConditionalRequestConflict"},
    "the server is overloaded; try again later": {"SlowDown", "ServiceUnavailable", "503"},
    "the server failed; check its log, or try again later": {
        *("InternalError", "500", "BadGateway", "502", "GatewayTimeout", "504"),
    },
    (
        "the server lacks an S3 feature that a store requires; use another server, or a local "
        "folder"
    ): {
        *("NotImplemented", "501"),
    },
    "check the storage options": {"TypeError", "ValueError", "ParamValidationError"},
}
_PERMISSIONS = {
    "read": "s3:GetObject",
    "write": "s3:PutObject",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject (or a lock or retention of the bucket forbids it)",
}


def _code(error: BaseException) -> str:
    """Return S3's error code, which s3fs keeps in the cause, or the name of the error's class."""
    response = getattr(error.__cause__ or error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", type(error).__name__))


def _attempts_text(error: BaseException, code: str, attempts: int) -> str:
    response = getattr(error.__cause__ or error, "response", None) or {}
    again = int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0))
    if again:
        return f"{again + 1} times"
    # botocore retries less after many failures, and does not report how often it tried.
    return f"up to {attempts} times" if attempts > 1 and code in _UNANSWERED else ""


_PUTS = 5
_DISTURBED = {
    # Another put of this name is in progress, and may still fail.
    "ConditionalRequestConflict",
    # The Versity S3 Gateway, while another client deletes the last object of the same folder. No
    # name of a store is also a folder.
    "ExistingObjectIsDirectory",
}
# Answers of servers that do not support listing uploads, or do not permit it to this client.
_UNLISTED = {"AccessDenied", "403", "MethodNotAllowed", "405", "NotImplemented", "501"}
_log = logging.getLogger(__name__)


class S3Storage(ObjectStorage):
    """A prefix of a bucket of S3: ``s3://bucket/prefix``, or ``s3a://``; with s3fs options."""

    scheme, extra = "s3", "s3"
    unanswered = frozenset(_UNANSWERED)
    most_copied_bytes: ClassVar[int] = 5 * 2**30
    # S3 takes 10,000 parts of 5 MiB or more: one file of a store holds up to 80 GB.

    def _configure(self, options: Mapping[str, Any]) -> None:
        # A cached listing would hide changes by other writers. Concurrent requests per object have
        # no benefit for objects this small, and would make s3fs request each object's size first.
        options = with_retries({"max_concurrency": 1, **options, "use_listings_cache": False})
        # botocore's default of ten connections would make the other streams wait.
        connections = {"max_pool_connections": max(self.streams, 10)}
        options["config_kwargs"] = connections | options["config_kwargs"]
        self._options, self._attempts = options, attempts_of(options)

    def _connect(self) -> Any:
        opened = fsspec.filesystem("s3", **self._options)
        opened.retries = 1  # botocore already retries; both would multiply
        return opened

    def _place(self) -> tuple[str, str]:
        bucket, root, _ = self._fs.split_path(self._prefix)
        return bucket, root

    def _call(self, method: str, key: str, **arguments: Any) -> dict[str, Any]:
        bucket = self._place()[0]
        return cast(dict[str, Any], self._fs.call_s3(method, Bucket=bucket, Key=key, **arguments))

    def _get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        path = f"{self._place()[0]}/{key}"

        def cat() -> bytes:
            return cast(bytes, self._fs.cat_file(path, start=start, end=stop))

        try:
            return retry(cat, self._attempts, lambda error: _code(error) in _BROKEN_OFF)
        except OSError as error:
            if _code(error) not in ("InvalidRange", "416"):  # the object is shorter
                raise
            return b""

    def _put(self, key: str, data: bytes) -> None:
        self._put_object(key, data)

    def _put_new(self, key: str, data: bytes, mark: str) -> bool:
        try:
            self._put_object(key, data, IfNoneMatch="*", Metadata={MARK: mark})
        except OSError as error:
            if _code(error) not in ("PreconditionFailed", "412"):
                raise
            return False
        return True

    def _put_object(self, key: str, data: bytes, **arguments: Any) -> None:
        """Put an object; retry if the server refuses it because of another request."""
        retry(
            lambda: self._call("put_object", key, Body=data, **arguments),
            _PUTS,
            lambda error: _code(error) in _DISTURBED,
        )

    def _mark_of(self, key: str) -> str | None:
        return cast("str | None", self._call("head_object", key)["Metadata"].get(MARK))

    def _size_of(self, key: str) -> int:
        try:
            return int(self._call("head_object", key)["ContentLength"])
        except FileNotFoundError:
            self._has_bucket()
            raise

    def _remove(self, key: str) -> None:
        self._call("delete_object", key)

    def _copy(self, old: str, new: str) -> None:
        self._call("copy_object", new, CopySource={"Bucket": self._place()[0], "Key": old})

    def _page(self, prefix: str, most: int, following: Any) -> ListingPage:
        wanted = {"ContinuationToken": following} if following else {}
        page = self._fs.call_s3(
            "list_objects_v2", Bucket=self._place()[0], Prefix=prefix, MaxKeys=most, **wanted
        )
        items = tuple(
            Listed(item["Key"], int(item["Size"]), _milliseconds(item["LastModified"]))
            for item in page.get("Contents", ())
        )
        return ListingPage(items, page["NextContinuationToken"] if page["IsTruncated"] else None)

    def _unfinished(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        wanted = {"Bucket": self._place()[0], "Prefix": prefix}
        while True:
            try:
                page = self._fs.call_s3("list_multipart_uploads", **wanted)
            except OSError as error:
                if _code(error) not in _UNLISTED:
                    raise
                _log.info("cannot list unfinished uploads: %s", error)
                return
            for item in page.get("Uploads", ()):
                yield item["Key"], item["UploadId"], _milliseconds(item["Initiated"])
            if not page.get("IsTruncated") or "NextKeyMarker" not in page:
                return  # some servers cannot continue the list: a later call lists the rest
            wanted["KeyMarker"] = page["NextKeyMarker"]
            wanted["UploadIdMarker"] = page["NextUploadIdMarker"]

    def _begin(self, key: str) -> Upload:
        return _MultipartUpload(self._call, key)

    def _end_upload(self, key: str, upload: str) -> None:
        try:
            self._call("abort_multipart_upload", key, UploadId=upload)
        except OSError as error:
            if _code(error) != "NoSuchUpload":
                raise

    def _explain(self, error: Exception, action: str) -> Failure:
        code = _code(error)
        advice = advice_of(code, _ADVICE)
        if code in _REFUSED:
            advice = (
                "the server rejects these credentials, or they do not permit "
                f"{_PERMISSIONS[action]}; check the storage options key and secret, or the "
                "AWS_… variables and profile"
            )
        is_missing = isinstance(error, FileNotFoundError) and code != "NoSuchBucket"
        return Failure(code, advice, _attempts_text(error, code, self._attempts), is_missing)

    def _endpoint(self) -> str:
        return named_endpoint(self._options) or "https://s3.amazonaws.com"

    def spark_url(self, name: str) -> str:
        """Return an ``s3a:`` URL in hadoop-aws's form."""
        return self._full_url(name).replace("s3://", "s3a://", 1)

    def hadoop_settings(self) -> dict[str, str]:
        """Return the options of ``s3a``, for this bucket only."""
        return s3a_settings(self._prefix.partition("/")[0], self._options)

    def delta_options(self) -> dict[str, str]:
        """Return delta-rs's options, with the credentials that s3fs uses now."""
        return delta_settings(self._options)


class _MultipartUpload:
    """A multipart upload."""

    def __init__(self, call: Callable[..., dict[str, Any]], key: str) -> None:
        """Start the upload."""
        self._call, self._key, self._size = call, key, 0
        self._upload = str(call("create_multipart_upload", key)["UploadId"])
        self._parts: list[dict[str, Any]] = []

    def send(self, body: bytes) -> None:
        number = len(self._parts) + 1
        sent = self._call(
            "upload_part", self._key, UploadId=self._upload, PartNumber=number, Body=body
        )
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        self._size += len(body)

    def complete(self, last: bytes) -> None:
        if last:
            self.send(last)
        try:
            self._call(
                "complete_multipart_upload",
                self._key,
                UploadId=self._upload,
                MultipartUpload={"Parts": self._parts},
            )
        except OSError as error:
            # botocore lost the answer and retried: a completed upload no longer exists. The name is
            # new and only this file uses it, so an object of the expected length is this file.
            if _code(error) != "NoSuchUpload":
                raise
            if int(self._call("head_object", self._key)["ContentLength"]) != self._size:
                raise

    def abort(self) -> None:
        self._call("abort_multipart_upload", self._key, UploadId=self._upload)


def _milliseconds(when: datetime) -> int:
    return int(when.timestamp() * 1000)


_HADOOP = "org.apache.hadoop.fs.s3a"


def s3a_settings(bucket: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of ``s3a`` for a bucket that the options specify."""
    client = options.get("client_kwargs") or {}
    settings = _credentials(options)
    endpoint = named_endpoint(options)
    if endpoint:
        settings["endpoint"] = endpoint
        settings["connection.ssl.enabled"] = str(urlsplit(endpoint).scheme != "http").lower()
        # Most servers other than Amazon's support buckets only in the path.
        settings["path.style.access"] = "true"
    region = client.get("region_name")
    if region or endpoint:
        settings["endpoint.region"] = str(region or "us-east-1")
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def named_endpoint(options: Mapping[str, Any]) -> str | None:
    """Return the server that the options name; None for Amazon's."""
    client = options.get("client_kwargs") or {}
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    return str(endpoint) if endpoint else None


def _credentials(options: Mapping[str, Any]) -> dict[str, str]:
    """Return credentials and their provider, so that keys of the environment are not used."""
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
    """Return the settings of delta-rs's object store, which also commits by a conditional put.

    Credentials come from the same places as in s3fs: the options, a profile, the environment, a
    role.
    """
    import botocore.session  # a dependency of s3fs

    client = options.get("client_kwargs") or {}
    session = botocore.session.Session(profile=options.get("profile"))
    endpoint = named_endpoint(options)
    region = client.get("region_name") or session.get_config_variable("region") or "us-east-1"
    settings = {"aws_conditional_put": "etag", "aws_region": str(region)}
    if endpoint:
        settings["aws_endpoint_url"] = endpoint
        settings["aws_allow_http"] = str(urlsplit(endpoint).scheme == "http").lower()
    if options.get("anon"):
        return settings | {"aws_skip_signature": "true"}
    keys = [options.get(name) or options.get(other) for name, other in _GIVEN]
    if not (keys[0] and keys[1]) and (credentials := session.get_credentials()) is not None:
        keys = [*credentials.get_frozen_credentials()]
    named = zip(("access_key_id", "secret_access_key", "session_token"), keys, strict=False)
    return settings | {f"aws_{name}": str(value) for name, value in named if value}
