"""S3's errors, by the names of S3 and of its clients.

Not all errors of botocore, aiohttp and s3fs are OSError, and s3fs converts some of S3's own
errors to a bare EINVAL. None of these libraries is imported, so errors are identified by their
names.
"""

from __future__ import annotations

import logging

from statestore.storage.requests import (
    NOT_REACHED,
)
from statestore.storage.s3 import _BROKEN_OFF

__all__ = [
    "_ADVICE",
    "_PERMISSIONS",
    "_PUTS",
    "_REFUSED",
    "_UNANSWERED",
    "_UNLISTED",
    "_attempts_text",
    "_code",
    "_log",
]


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
# Answers of servers that do not support listing uploads, or do not permit it to this client.
_UNLISTED = {"AccessDenied", "403", "MethodNotAllowed", "405", "NotImplemented", "501"}
_log = logging.getLogger(__name__)
