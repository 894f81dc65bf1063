"""Credentials in the address of a server, and the HTTP proxy that the environment sets for it.

A URL appears in messages, logs and documents, so it must not contain credentials.

The clients of the object stores, and delta-rs, use the proxy. If it is dead, or cannot reach a
server of the local network, most of their errors do not mention it. So the message of a failed
request names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from statestore.errors import InvalidArgumentError

GATEWAY_CODES = frozenset({"407", "502", "503", "504", "BadGateway", "GatewayTimeout"})
"""The statuses and error codes with which a proxy answers for a server that it cannot reach."""

# delta-rs's names of a server, and the server that it uses without one, by the scheme of a URL.
_ENDPOINTS = ("aws_endpoint_url", "azure_endpoint", "google_base_url")
_PUBLIC = {
    "s3": "https://s3.amazonaws.com",
    "gs": "https://storage.googleapis.com",
    "az": "https://blob.core.windows.net",
    "abfss": "https://blob.core.windows.net",
}
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


def proxy_advice(endpoint: str) -> str | None:
    """Return advice about the proxy that is set for a server; None if none is set for it.

    Args:
        endpoint: the URL of the server.
    """
    address = urlsplit(endpoint)
    from urllib.request import getproxies, proxy_bypass  # a slow import, needed after an error

    host, proxies = address.hostname or "", getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return None
    wanted = f"{address.scheme}_proxy" if address.scheme in proxies else "all_proxy"
    variable = next((name for name in os.environ if name.lower() == wanted), "the system")
    shown = without_credentials(proxy if "://" in proxy else f"http://{proxy}")
    return (
        f"{variable} sets the proxy {shown} for requests to {host}: check that the proxy works, or "
        f"add {host} to NO_PROXY to connect directly"
    )


def delta_proxy_advice(url: str, settings: Mapping[str, str]) -> str | None:
    """Return :func:`proxy_advice` for delta-rs's requests.

    Args:
        url: the URL of a store or table; a local path has no proxy.
        settings: delta-rs's options for it.
    """
    scheme, separator, _ = url.partition("://")
    named = next((settings[name] for name in _ENDPOINTS if name in settings), None)
    endpoint = named or (_PUBLIC.get(scheme) if separator else None)
    return None if endpoint is None else proxy_advice(endpoint)
