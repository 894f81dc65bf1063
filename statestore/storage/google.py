"""Google Cloud Storage with the credentials and session of gcsfs: its requests and its errors.

A conditional put uses ``ifGenerationMatch=0``. A large file is sent in parts, which are hidden
objects next to its name. ``compose`` joins them into one object. Unlike in a resumable upload, each
of these requests can be retried if its answer is lost, and the parts of a killed writer are visible
in a listing.
"""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, cast
from urllib.parse import quote, urlencode

from fsspec.asyn import sync

from statestore.storage.base import Listed
from statestore.storage.objects import MARK, ListingPage, ObjectStorage, hidden_name
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

_MOST_COMPOSED = 32
_NO_BUCKET = "noSuchBucket"
_OBJECT_MISSING = "noSuchObject"
_BUSY = {"rateLimitExceeded", "backendError", "429", "503"}
_FAILED = {"internalError", "408", "500", "502", "504"}
_UNANSWERED = {
    *("ClientConnectorError", "ClientConnectorDNSError", "ClientOSError", "ClientPayloadError"),
    *("ServerDisconnectedError", "ConnectionTimeoutError", "SocketTimeoutError"),
    *("ServerTimeoutError", "TimeoutError", "FSTimeoutError", "TransportError"),
    *("ConnectionResetError", "ClientConnectionResetError"),
}
_REFUSED = {"401", "403", "required", "authError", "forbidden", "insufficientPermissions"}
_ADVICE = {
    "the bucket does not exist; create it, or check the URL": {_NO_BUCKET},
    (
        "a retention policy or a hold of the bucket forbids it, but a store must be able to "
        "delete files; use a bucket without one"
    ): {
        *("retentionPolicyNotMet", "objectUnderActiveHold", "retentionPolicyInPlace"),
    },
    (
        "the credentials could not be obtained or renewed; pass the storage option token, or log "
        "in with gcloud auth application-default login"
    ): {
        *("RefreshError", "DefaultCredentialsError", "MutualTLSChannelError"),
    },
    NOT_REACHED.format(endpoint="endpoint_url"): _UNANSWERED,
    "the server is overloaded; try again later": _BUSY,
    "the server failed; check its log, or try again later": _FAILED,
    "check the storage options": {"TypeError", "ValueError", "InvalidURL", "400", "invalid"},
}
_PERMISSIONS = {
    "read": "storage.objects.get",
    "write": "storage.objects.create",
    "list": "storage.objects.list",
    "delete": "storage.objects.delete",
}


class _ResponseError(OSError):
    """An error response: its status, and Google's code for it."""

    def __init__(self, status: int, body: bytes, code: str | None = None) -> None:
        try:
            error = json.loads(body)["error"]
            reasons = error.get("errors") or [{}]
            text, reason = str(error.get("message", "")), str(reasons[0].get("reason", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            text, reason = body.decode(errors="replace")[:500], ""
        super().__init__(f"HTTP {status}: {text}" if text else f"HTTP {status}")
        self.status = status
        self.code = code or (reason if reason.isidentifier() else str(status))


class GoogleStorage(ObjectStorage):
    """A prefix of a bucket: ``gs://bucket/prefix``, or ``gcs://``; with gcsfs options."""

    scheme, extra = "gs", "gcs"
    unanswered = frozenset(_UNANSWERED)
    # A copy within a bucket copies only metadata, regardless of size, or continues in more
    # requests.
    most_copied_bytes: ClassVar[int] = 5 * 2**40

    def _configure(self, options: Mapping[str, Any]) -> None:
        self._is_there = False  # not known yet

    def _connect(self) -> Any:
        # Not by protocol name: gcsfs would then use gRPC to ask for the type of the bucket.
        from gcsfs.core import GCSFileSystem

        return GCSFileSystem(**self._options, use_listings_cache=False)

    def _request(
        self,
        method: str,
        path: str,
        *,
        upload: bool = False,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        **parameters: Any,
    ) -> bytes:
        """Send a request, and return the answer's body, without gcsfs's own retries of a minute."""
        fs = self._fs
        base = fs.base.removesuffix("storage/v1/") + "upload/storage/v1/" if upload else fs.base
        if fs.requester_pays:
            payer = fs.requester_pays if isinstance(fs.requester_pays, str) else fs.project
            parameters["userProject"] = payer
        url = f"{base}b/{quote(self._place()[0], safe='')}/{path}"
        if parameters:
            url = f"{url}?{urlencode(parameters)}"

        def send() -> bytes:
            return cast(bytes, sync(fs.loop, _send, fs, method, url, dict(headers or {}), data))

        answer = retry(send, ATTEMPTS, _is_transient)
        self._is_there = True
        return answer

    def _object(self, method: str, key: str, path: str = "", **arguments: Any) -> bytes:
        """Send a request for one object, and return its answer.

        A 404 does not say whether the bucket or the object is missing. The bucket is checked until
        the first successful request.
        """
        try:
            return self._request(method, f"o/{quote(key, safe='')}{path}", **arguments)
        except _ResponseError as error:
            if error.code not in ("404", "notFound"):
                raise
            if not self._is_there:
                self._has_bucket()
            error.code = _OBJECT_MISSING
            raise

    def _get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        headers = {} if start is None or stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        try:
            return self._object("GET", key, headers=headers, alt="media")
        except _ResponseError as error:
            if error.status != 416:  # the object is shorter
                raise
            return b""

    def _put(self, key: str, data: bytes) -> None:
        self._upload(key, data, uploadType="media", name=key)

    def _upload(self, key: str, data: bytes, **arguments: Any) -> None:
        headers = {"Content-Type": "application/octet-stream"} | arguments.pop("headers", {})
        try:
            self._request("POST", "o", upload=True, headers=headers, data=data, **arguments)
        except _ResponseError as error:
            if error.status == 404:
                error.code = _NO_BUCKET
            raise

    def _put_new(self, key: str, data: bytes, mark: str) -> bool:
        line = uuid.uuid4().hex
        about = json.dumps({"name": key, "metadata": {MARK: mark}})
        body = (
            f"--{line}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n"
            f"--{line}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode() + b"%s\r\n--%s--\r\n" % (data, line.encode())
        headers = {"Content-Type": f"multipart/related; boundary={line}"}
        try:
            self._upload(key, body, headers=headers, uploadType="multipart", ifGenerationMatch="0")
        except _ResponseError as error:
            if error.status != 412:
                raise
            return False
        return True

    def _mark_of(self, key: str) -> str | None:
        item = json.loads(self._object("GET", key, fields="metadata"))
        return cast("str | None", item.get("metadata", {}).get(MARK))

    def _size_of(self, key: str) -> int:
        return int(json.loads(self._object("GET", key, fields="size"))["size"])

    def _remove(self, key: str) -> None:
        try:
            self._object("DELETE", key)
        except _ResponseError as error:
            if error.code != _OBJECT_MISSING:
                raise

    def _copy(self, old: str, new: str) -> None:
        path = f"/rewriteTo/b/{quote(self._place()[0], safe='')}/o/{quote(new, safe='')}"
        further: dict[str, str] = {}
        while True:
            answer = json.loads(self._object("POST", old, path, **_json({}), **further))
            if answer["done"]:
                return
            further = {"rewriteToken": answer["rewriteToken"]}

    def _page(self, prefix: str, most: int, following: Any) -> ListingPage:
        wanted = {"prefix": prefix, "maxResults": most, "pageToken": following}
        fields = "items(name,size,updated),nextPageToken"
        parameters = {name: value for name, value in wanted.items() if value}
        try:
            page = json.loads(self._request("GET", "o", fields=fields, **parameters))
        except _ResponseError as error:
            if error.status == 404:
                error.code = _NO_BUCKET
            raise
        items = tuple(
            Listed(item["name"], int(item["size"]), _milliseconds(item["updated"]))
            for item in page.get("items", ())
        )
        return ListingPage(items, page.get("nextPageToken") or None)

    def _begin(self, key: str) -> Upload:
        return _ComposedUpload(self, key)

    def _end_upload(self, key: str, upload: str) -> None:
        self._remove(hidden_name(key, upload))

    def _compose(self, parts: list[str], key: str) -> None:
        body = {
            "sourceObjects": [{"name": part} for part in parts],
            "destination": {"contentType": "application/octet-stream"},
        }
        self._object("POST", key, "/compose", **_json(body))

    def _explain(self, error: Exception, action: str) -> Failure:
        code = _code(error)
        advice = advice_of(code, _ADVICE)
        if code in _REFUSED:
            advice = (
                "the server rejects these credentials, or they do not permit "
                f"{_PERMISSIONS[action]} (the role Storage Object User has all permissions that a "
                "store needs); check the storage option token, or GOOGLE_APPLICATION_CREDENTIALS"
            )
        if code == "RefreshError" and "iat" in str(error):
            advice = (
                "the clock of this machine is wrong, so its tokens are rejected; synchronize it "
                "with NTP"
            )
        tried = f"{ATTEMPTS} times" if _is_transient(error) else ""
        return Failure(code, advice, tried, code == _OBJECT_MISSING)

    def _endpoint(self) -> str:
        return str(self._fs.base)

    def delta_options(self) -> dict[str, str]:
        """Return delta-rs's options, with the credentials that gcsfs uses.

        Credentials that gcsfs finds by itself (application default credentials, a machine's
        account) are also found by delta-rs.
        """
        settings: dict[str, str] = {}
        # The options or the variable STORAGE_EMULATOR_HOST name another server.
        endpoint = str(self._fs.base).removesuffix("/storage/v1/")
        if ".googleapis.com" not in endpoint:
            settings["google_base_url"] = endpoint
            settings["allow_http"] = str(endpoint.startswith("http://")).lower()
        token = self._options.get("token")
        if token == "anon":
            # These options stop delta-rs from looking for any credentials.
            nobody = {"disable_oauth": True, "gcs_base_url": settings.get("google_base_url")}
            nobody |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            credentials = {name: value for name, value in nobody.items() if value is not None}
            return settings | {"google_service_account_key": json.dumps(credentials)}
        if isinstance(token, dict):
            return settings | {"google_service_account_key": json.dumps(token)}
        if isinstance(token, str) and token.endswith(".json"):
            return settings | {"google_application_credentials": token}
        return settings


class _ComposedUpload:
    """Hidden objects that are composed into one object; no other code knows their names."""

    def __init__(self, storage: GoogleStorage, key: str) -> None:
        """Start without parts; no request is sent yet."""
        self._storage, self._key = storage, key
        self._token, self._parts = uuid.uuid4().hex[:16], list[str]()

    def send(self, body: bytes) -> None:
        self._parts.append(self._name())
        self._storage._put(self._parts[-1], body)

    def complete(self, last: bytes) -> None:
        if last:
            self.send(last)
        parts = list(self._parts)
        while len(parts) > _MOST_COMPOSED:
            batch, parts = parts[:_MOST_COMPOSED], parts[_MOST_COMPOSED:]
            self._parts.append(self._name())
            self._storage._compose(batch, self._parts[-1])
            parts.insert(0, self._parts[-1])
        self._storage._compose(parts, self._key)
        self.abort()

    def abort(self) -> None:
        """Delete the parts; their object exists already, or is not needed."""
        for part in self._parts:
            self._storage._remove(part)

    def _name(self) -> str:
        return hidden_name(self._key, f"{self._token}.{len(self._parts):05}")


async def _send(
    fs: Any, method: str, url: str, headers: dict[str, str], data: bytes | None
) -> bytes:
    """Send one request; retry it once with a new token if the server rejects the old one."""
    import aiohttp  # gcsfs depends on both
    from yarl import URL

    session = await fs._set_session()
    waits = aiohttp.ClientTimeout(
        total=None, sock_connect=CONNECT_SECONDS, sock_read=fs.requests_timeout or READ_SECONDS
    )
    status, body = 0, b""
    for is_last in (False, True):
        # This renews a token that is about to expire.
        fs.credentials.apply(headers)
        async with session.request(
            method,
            URL(url, encoded=True),
            headers=headers,
            data=None if data is None else io.BytesIO(data),
            timeout=waits,
        ) as answer:
            status, body = answer.status, await answer.read()
        if status != 401 or is_last or not await asyncio.to_thread(_renew_token, fs.credentials):
            break
    if status >= 400:
        raise _ResponseError(status, body)
    return body


def _renew_token(credentials: Any) -> bool:
    """Request a new token for these credentials; return whether that succeeded."""
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    own = credentials.credentials
    if own is None:
        return False
    try:
        own.refresh(Request())
    except GoogleAuthError:
        return False
    return True


def _code(error: BaseException) -> str:
    return str(getattr(error, "code", None) or type(error).__name__)


def _is_transient(error: Exception) -> bool:
    status = str(getattr(error, "status", ""))
    return bool({_code(error), status} & (_BUSY | _FAILED | _UNANSWERED))


def _json(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}


def _milliseconds(when: str) -> int:
    return int(datetime.fromisoformat(when).timestamp() * 1000)
