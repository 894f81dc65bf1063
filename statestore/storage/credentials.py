"""A URL is shown in messages, logs and documents, so it holds no credentials."""

from __future__ import annotations

import re

from statestore.errors import InvalidArgumentError

__all__ = ["refuse_credentials", "without_credentials"]

# As people write them and no parser reads them: a secret may hold any character, a slash too. A
# folder's name may have all of these, and has no scheme before it.
_FOLDER = re.compile(r"(file|local):///|[/.~]")
_CREDENTIALS = re.compile(r":/{1,2}.*:.*@|://[^/@]*@", re.DOTALL)
_AUTHORITY = re.compile(r"://[^\s\"']*@")


def refuse_credentials(url: str, *, is_endpoint: bool = False) -> None:
    """Raise InvalidArgumentError for a URL that may hold a user's name or secret before an ``@``;
    the message has no part of it. An endpoint has no ``@`` at all.
    """
    found = "@" in url if is_endpoint else not _FOLDER.match(url) and _CREDENTIALS.search(url)
    if found:
        raise InvalidArgumentError(
            "credentials do not belong in a URL, which is shown in messages and logs; give them as "
            "the storage options key and secret, or as AWS_… variables (a URL of a store has no "
            "'@' with a ':' before it)"
        )


def without_credentials(text: str) -> str:
    """Return what a library says, without what may be credentials in URLs that it quotes."""
    return _AUTHORITY.sub("://…@", text)
