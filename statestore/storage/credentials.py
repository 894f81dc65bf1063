"""A URL appears in messages, logs and documents, so it must not contain credentials."""

from __future__ import annotations

import re

from statestore.errors import InvalidArgumentError

__all__ = ["CONTAINER", "refuse_credentials", "without_credentials"]


# Matches credentials as people type them, which no URL parser accepts: a secret may contain any
# character, including a slash. A folder's name may contain the same characters, but it has no
# scheme.
_FOLDER = re.compile(r"(file|local):///|[/.~]")
_CREDENTIALS = re.compile(r":/{1,2}.*:.*@|://[^/@]*@", re.DOTALL)
# The only allowed ``@``: between an Azure container and its account.
CONTAINER = re.compile(
    r"abfss?://(?P<container>[a-z0-9$-]+)@(?P<account>[a-z0-9]+)\.(?:dfs|blob)\."
    r"(?P<suffix>[a-z0-9-]+(?:\.[a-z0-9-]+)+)(?=/|$)"
)
_AUTHORITY = re.compile(r"://[^\s\"']*@")


def refuse_credentials(url: str, *, is_endpoint: bool = False) -> None:
    """Raise InvalidArgumentError for a URL that may contain a user name or secret before an ``@``.

    The message shows no part of the URL. An endpoint must not contain any ``@``.
    """
    url = CONTAINER.sub("://", url, count=1)
    has_credentials = (
        "@" in url if is_endpoint else not _FOLDER.match(url) and _CREDENTIALS.search(url)
    )
    if has_credentials:
        raise InvalidArgumentError(
            "credentials must not be in a URL, which appears in messages and logs; pass them "
            "as storage options such as key and secret, or as environment variables such as "
            "AWS_… (the URL of a store contains no '@', except in "
            "abfss://container@account.dfs.core.windows.net)"
        )


def without_credentials(text: str) -> str:
    """Return a library's message without possible credentials in the URLs that it quotes."""
    return _AUTHORITY.sub("://…@", text)
