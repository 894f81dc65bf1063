"""The HTTP proxy that the environment sets for a server, for the message of a failed request.

The clients of the object stores, and delta-rs, use this proxy. If it is dead, or cannot reach a
server of the local network, most of their errors do not mention it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from statestore.storage.credentials import without_credentials

__all__ = ["GATEWAY_CODES", "delta_proxy_advice", "proxy_advice"]

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


def proxy_advice(endpoint: str) -> str | None:
    """Return advice about the proxy that is set for a server; None if none is set for it.

    Args:
        endpoint: the URL of the server.
    """
    address = urlsplit(endpoint)
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
