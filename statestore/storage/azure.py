"""Azure Blob Storage through adlfs: its requests and its errors.

A conditional put is ``Put Blob`` with ``If-None-Match: *``. A large file is staged in blocks, which
readers cannot see, and appears with ``Put Block List``. No blob is ever renamed, so it does not
matter whether the account has a hierarchical namespace.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import time
import uuid
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import fsspec
from fsspec.asyn import sync

from statestore.storage.addresses import CONTAINER
from statestore.storage.base import DEFAULT_STREAMS, Listed, check_inside
from statestore.storage.objects import ListingPage, ObjectStorage, pages_of
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

_MARK = "statestore_put"  # metadata names must be valid variable names
_PUBLIC = "blob.core.windows.net"
_UNCOMMITTED = "uncommitted"
# The scope of a token that is valid for all of Blob Storage.
_SCOPE = "https://storage.azure.com/.default"

_BUSY = {"ServerBusy", "429", "503", "TooManyRequests", "IngressIsOverAccountLimit"}
_FAILED = {"InternalError", "OperationTimedOut", "408", "500", "502", "504"}
_UNANSWERED = {
    *("ServiceRequestError", "ServiceRequestTimeoutError", "ServiceResponseError"),
    *("ServiceResponseTimeoutError", "IncompleteReadError", "ClientPayloadError"),
    *("FSTimeoutError", "TimeoutError"),
}
# A response body that broke off. The SDK itself has retried it this many times.
_BROKEN_OFF, _DOWNLOADS = "HttpResponseError", 3
_REFUSED = {
    *("AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo", "401", "403"),
    *("AuthorizationPermissionMismatch", "InsufficientAccountPermissions", "NoAuthenticationInfo"),
    *("AuthorizationProtocolMismatch", "AuthorizationServiceMismatch", "PublicAccessNotPermitted"),
    *("AuthorizationResourceTypeMismatch", "AccountIsDisabled", "ClientAuthenticationError"),
    *("AuthorizationSourceIPMismatch", "CredentialUnavailableError"),
}
_ADVICE = {
    "the container does not exist; create it, or check the URL": {
        *("ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled", "InvalidResourceName"),
    },
    (
        "an immutability policy or a lease of the container forbids it, but a store must be able "
        "to delete files; use a container without one"
    ): {
        *("BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold", "LeaseIdMissing"),
    },
    "a folder with this name exists, in an account with a hierarchical namespace; remove it": {
        *("PathConflict", "PathAlreadyExists", "ResourceTypeMismatch", "DirectoryNotEmpty"),
    },
    NOT_REACHED.format(endpoint="account_name or connection_string"): {*_UNANSWERED, _BROKEN_OFF},
    "the server is overloaded; try again later": _BUSY,
    "the server failed; check its log, or try again later": _FAILED,
    "check the storage options": {"TypeError", "ValueError", "InvalidUri", "OutOfRangeInput"},
}


class AzureStorage(ObjectStorage):
    """A prefix of a container, with adlfs options.

    The URL is ``az://container/prefix``, or
    ``abfss://container@account.dfs.core.windows.net/prefix``.
    """

    scheme, extra = "az", "azure"
    unanswered = frozenset({*_UNANSWERED, _BROKEN_OFF})
    # Copy Blob has no practical limit. The storage waits for a copy that runs asynchronously.
    most_copied_bytes: ClassVar[int] = 190 * 2**40

    def __init__(
        self, url: str, options: Mapping[str, Any], streams: int = DEFAULT_STREAMS
    ) -> None:
        """Take a URL and adlfs options; one of them names the account."""
        named = CONTAINER.match(url)
        if named is None:
            super().__init__(f"az://{url.partition('://')[2]}", options, streams)
            return
        account = {"account_name": named["account"]}
        if named["suffix"] != "core.windows.net":
            account["account_host"] = f"{named['account']}.blob.{named['suffix']}"
        root = url[named.end() :].strip("/")
        super().__init__(f"az://{named['container']}/{root}", {**account, **options}, streams)
        # Keep the given URL, because it names the account.
        self.url = url.replace("abfs://", "abfss://", 1).rstrip("/")

    def _configure(self, options: Mapping[str, Any]) -> None:
        waits = {"connection_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
        self._waits = {name: options.get(name, value) for name, value in waits.items()}
        self._options = {**options, "use_listings_cache": False}

    def _connect(self) -> Any:
        return fsspec.filesystem("az", **self._options)

    def _request(
        self, request: Callable[..., Awaitable[Any]], *positional: Any, **arguments: Any
    ) -> Any:
        """Send a request without the SDK's own retries, which take minutes; return its answer."""

        async def ask() -> Any:
            return await request(*positional, retry_total=0, **self._waits, **arguments)

        return retry(lambda: sync(self._fs.loop, ask), ATTEMPTS, _is_transient)

    def _blob(self, key: str) -> Any:
        return self._fs.service_client.get_blob_client(self._place()[0], key)

    def _get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        length = None if start is None or stop is None else stop - start
        blob = self._blob(key)

        async def download(**arguments: Any) -> bytes:
            answer = await blob.download_blob(start, length, max_concurrency=1, **arguments)
            return cast(bytes, await answer.readall())

        try:
            return cast(bytes, self._request(download))
        except Exception as error:
            if _code(error) not in ("InvalidRange", "416"):  # the blob is shorter
                raise
            return b""

    def _put(self, key: str, data: bytes) -> None:
        self._request(self._blob(key).upload_blob, data, overwrite=True, max_concurrency=1)

    def _put_new(self, key: str, data: bytes, mark: str) -> bool:
        try:
            self._request(
                self._blob(key).upload_blob,
                data,
                overwrite=False,  # If-None-Match: *
                metadata={_MARK: mark},
                max_concurrency=1,
            )
        except Exception as error:
            if _code(error) not in ("BlobAlreadyExists", "ConditionNotMet", "412"):
                raise
            return False
        return True

    def _mark_of(self, key: str) -> str | None:
        properties = self._request(self._blob(key).get_blob_properties)
        return cast("str | None", (properties.metadata or {}).get(_MARK))

    def _size_of(self, key: str) -> int:
        return int(self._request(self._blob(key).get_blob_properties).size)

    def _remove(self, key: str) -> None:
        try:
            self._request(self._blob(key).delete_blob)
        except Exception as error:
            if _code(error) != "BlobNotFound":
                raise

    def _copy(self, old: str, new: str) -> None:
        target = self._blob(new)
        copied = self._request(target.start_copy_from_url, self._blob(old).url)
        while copied["copy_status"] == "pending":
            time.sleep(0.1)
            copied = {"copy_status": self._request(target.get_blob_properties).copy.status}
        if copied["copy_status"] != "success":
            raise OSError(f"the copy on the server ended with the status {copied['copy_status']}")

    def _page(self, prefix: str, most: int, following: Any) -> ListingPage:
        return self._listing(prefix, most, following, ["metadata"])

    def _listing(self, prefix: str, most: int, following: Any, include: list[str]) -> ListingPage:
        container = self._fs.service_client.get_container_client(self._place()[0])

        async def page(**arguments: Any) -> tuple[list[Any], Any]:
            pages = container.list_blobs(
                name_starts_with=prefix or None,
                include=include,
                results_per_page=most,
                **arguments,
            ).by_page(following)
            blobs = [blob async for blob in await anext(pages)]
            return blobs, pages.continuation_token

        blobs, following = self._request(page)
        # A hierarchical namespace also lists its folders.
        items = tuple(
            Listed(blob.name, int(blob.size or 0), _milliseconds(blob.last_modified))
            for blob in blobs
            if (blob.metadata or {}).get("hdi_isfolder") != "true"
        )
        return ListingPage(items, following or None)

    def _unfinished(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        """Yield blobs that have uncommitted blocks only: a listing shows them only on request."""

        def blobs(*include: str) -> Iterator[Listed]:
            ask = functools.partial(self._listing, prefix, 5000, include=["metadata", *include])
            return itertools.chain.from_iterable(pages_of(ask))

        # In this order: blobs that are committed meanwhile are finished.
        empty = [item for item in blobs("uncommittedblobs") if item.size_bytes == 0]
        finished = {item.name for item in blobs()}
        for item in empty:
            if item.name not in finished:
                yield item.name, _UNCOMMITTED, item.modified_ms

    def _begin(self, key: str) -> Upload:
        return _BlockUpload(self, key)

    def _end_upload(self, key: str, upload: str) -> None:
        """Discard the uncommitted blocks of a blob by committing an empty one and deleting it.

        If the blocks were committed meanwhile, the blob stays.
        """
        from azure.core import MatchConditions  # a dependency of adlfs

        blob = self._blob(key)
        try:
            blank = self._request(
                blob.commit_block_list, [], match_condition=MatchConditions.IfMissing
            )
        except Exception as error:
            if _code(error) not in ("BlobAlreadyExists", "ConditionNotMet", "412"):
                raise
            return
        self._request(
            blob.delete_blob, etag=blank["etag"], match_condition=MatchConditions.IfNotModified
        )

    def _explain(self, error: Exception, action: str) -> Failure:
        code = _code(error)
        advice = advice_of(code, _ADVICE) or advice_of(_status_text(error), _ADVICE)
        if {code, _status_text(error)} & _REFUSED and advice is None:
            advice = _refusal(str(error), action)
        attempts = _DOWNLOADS if code == _BROKEN_OFF else ATTEMPTS if _is_transient(error) else 0
        tried = f"{attempts} times" if attempts else ""
        return Failure(code, advice, tried, code == "BlobNotFound")

    def _endpoint(self) -> str:
        return str(self._fs.service_client.primary_endpoint)

    def spark_url(self, name: str) -> str:
        """Return an ``abfss:`` URL in hadoop-azure's form."""
        if self.url.startswith("abfss://"):
            return self._full_url(name)
        container, root = self._place()
        account = self._fs.service_client.account_name
        path = "/".join(part for part in (root, check_inside(name) if name else "") if part)
        return f"abfss://{container}@{account}.dfs.core.windows.net/{path}"

    def delta_options(self) -> dict[str, str]:
        """Return delta-rs's options, with the credentials that adlfs uses now.

        A token is valid for about an hour: each table that is opened gets a new one.
        """
        client = self._fs.service_client
        settings = {"azure_storage_account_name": str(client.account_name)}
        endpoint = urlsplit(client.primary_endpoint)
        if not (endpoint.hostname or "").endswith(f".{_PUBLIC}"):
            settings["azure_endpoint"] = endpoint._replace(query="").geturl().rstrip("/")
            settings["azure_allow_http"] = str(endpoint.scheme == "http").lower()
        return settings | self._delta_credentials()

    def _delta_credentials(self) -> dict[str, str]:
        fs = self._fs
        parts = (part.partition("=") for part in (fs.connection_string or "").split(";"))
        connection = {name: value for name, _, value in parts}
        key = fs.account_key or connection.get("AccountKey")
        sas = fs.sas_token or connection.get("SharedAccessSignature")
        token = fs.credential
        if isinstance(token, str):  # the SDK also accepts a key here
            key, token = token, None
        if hasattr(token, "signature"):
            sas, token = token.signature, None
        if hasattr(token, "named_key"):
            key, token = token.named_key.key, None
        if token is not None:
            return {"azure_storage_token": sync(fs.loop, token.get_token, _SCOPE).token}
        if key:
            return {"azure_storage_account_key": key}
        if sas:
            return {"azure_storage_sas_token": sas.lstrip("?")}
        return {"azure_skip_signature": "true"}


def _disable_exit_handlers() -> None:
    """Disable adlfs's exit handlers in a forked process.

    They would close the parent's connections, and wait for a thread that does not exist here. (No
    public API lists the exit handlers.)
    """
    for end in weakref.finalize._registry:  # type: ignore[attr-defined]
        alive = end.peek()
        if alive is not None and type(alive[0]).__module__ == "adlfs.spec":
            end.atexit = False


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_disable_exit_handlers)


class _BlockUpload:
    """A blob that is staged in blocks; Azure discards uncommitted blocks after a week."""

    def __init__(self, storage: AzureStorage, key: str) -> None:
        """Start without blocks; no request is sent yet."""
        self._storage, self._key = storage, key
        self._blob = storage._blob(key)
        self._ids: list[str] = []

    def send(self, body: bytes) -> None:
        block = uuid.uuid4().hex
        self._storage._request(lambda **waits: self._stage(block, body, **waits))
        self._ids.append(block)

    async def _stage(self, block: str, body: bytes, **waits: Any) -> None:
        # A stream: the HTTP client warns about bytes, which it would send in one piece.
        await self._blob.stage_block(block, io.BytesIO(body), len(body), **waits)

    def complete(self, last: bytes) -> None:
        from azure.storage.blob import BlobBlock  # a dependency of adlfs

        if last:
            self.send(last)
        # If it is retried after a lost answer, it finds the blocks in the blob that it created.
        blocks = [BlobBlock(block) for block in self._ids]
        self._storage._request(self._blob.commit_block_list, blocks)

    def abort(self) -> None:
        self._storage._end_upload(self._key, _UNCOMMITTED)


def _code(error: BaseException) -> str:
    """Return Azure's code of an error, or its status, or the name of its class."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or _status_text(error) or type(error).__name__)


def _status_text(error: BaseException) -> str:
    return str(getattr(error, "status_code", None) or "")


def _is_transient(error: Exception) -> bool:
    return bool({_code(error), _status_text(error)} & (_BUSY | _FAILED | _UNANSWERED))


def _refusal(message: str, action: str) -> str:
    if "date header" in message or "not valid yet" in message.lower():
        return (
            "the clock of this machine is wrong, so its signatures are rejected; synchronize it "
            "with NTP"
        )
    if "Signature not valid in the specified time frame" in message or "expired" in message.lower():
        return "the credentials have expired or are not valid yet; provide new ones"
    return (
        f"the server rejects these credentials, or they do not permit to {action} blobs (role "
        "Storage Blob Data Contributor, or a SAS with rwdlac); check the storage options "
        "account_name and account_key, sas_token or credential, or the AZURE_STORAGE_… variables"
    )


def _milliseconds(when: datetime | None) -> int:
    """Return the last modification of a blob; now for a blob that is still being written."""
    return int((when or datetime.now(UTC)).timestamp() * 1000)
