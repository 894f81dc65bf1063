"""The pages over HTTP. Nothing here changes a store.

Off this machine every request needs the token; names of other hosts are refused, so that no page
of another site reaches a store through a browser. A browser is told to load nothing from elsewhere
and to run no script but ours.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MissingDependencyError,
    ParallelismError,
    StateNotFoundError,
    StateStoreError,
    StoreNotFoundError,
)
from statestore.parsing import parse_integer
from statestore.restore.plan import Weight
from statestore.store import StateStore
from statestore.ui.checkpoint import checkpoint, hot_keys, state
from statestore.ui.pages import View, static, written
from statestore.ui.questions import compare, history, key, sql
from statestore.ui.rescale import RATE, rescale
from statestore.ui.timeline import newest, timeline

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise MissingDependencyError(
        "the pages of a store need more packages: pip install 'statestore[ui]'"
    ) from error

__all__ = ["POLICY", "application", "is_local", "serve"]

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
_TOKEN: Final = "statestore-token"
_STATUS: Final[Mapping[type[StateStoreError], int]] = {
    StoreNotFoundError: 404,
    CheckpointNotFoundError: 404,
    StateNotFoundError: 404,
    ParallelismError: 400,
    InvalidArgumentError: 400,
}
_TYPES: Final = {"ui.js": "text/javascript", "ui.css": "text/css"}

Query = Mapping[str, str]


def application(store: StateStore, *, hosts: tuple[str, ...], token: str | None) -> Starlette:
    """Return the pages of a store as an ASGI application.

    ``hosts`` are the names under which it may be asked for, ``*`` for any; with a ``token``
    each request has to bring it, in ``?token=`` once and then as a cookie.
    """
    pages: dict[str, Callable[[Request, Query], View]] = {
        "/": lambda request, query: timeline(store, _number(query, "before")),
        "/compare": lambda request, query: compare(store, query.get("a", ""), query.get("b", "")),
        "/checkpoint/{which}": lambda request, query: checkpoint(store, _which(request)),
        "/checkpoint/{which}/state": lambda request, query: state(
            store, _which(request), query.get("operator", ""), query.get("state", "")
        ),
        "/checkpoint/{which}/hot": lambda request, query: hot_keys(
            store, _which(request), query.get("operator", ""), query.get("state", "")
        ),
        "/checkpoint/{which}/rescale": lambda request, query: rescale(
            store,
            _which(request),
            _number(query, "parallelism"),
            balance=Weight(query["balance"]) if query.get("balance") else None,
            rate=(_number(query, "rate") or RATE // 10**6) * 10**6,
        ),
        "/checkpoint/{which}/key": lambda request, query: key(
            store, _which(request), query.get("key", "")
        ),
        "/checkpoint/{which}/history": lambda request, query: history(
            store,
            _which(request),
            query.get("key", ""),
            query.get("operator", ""),
            query.get("state", ""),
        ),
        "/checkpoint/{which}/sql": lambda request, query: sql(
            store, _which(request), query.get("sql", "")
        ),
    }
    routes = [Route(path, _page(store, made)) for path, made in pages.items()]
    routes.append(Route("/newest", lambda request: JSONResponse({"id": _newest(store)})))
    routes.append(Route("/static/{name}", _static))
    middleware = [
        Middleware(_Headers),
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
        *([Middleware(_WithToken, token=token)] if token else []),
    ]
    return Starlette(routes=routes, middleware=middleware)


def serve(
    store: StateStore, host: str, port: int, *, token: str | None, say: Callable[[str], None]
) -> None:
    """Serve a store until the process is told to stop; ``say`` hears where.

    Raises InvalidArgumentError for a host of other machines without a token, and when the port
    cannot be had.
    """
    if not is_local(host) and not token:
        raise InvalidArgumentError(f"{host} is not this machine alone: give a token")
    hosts = ("localhost", "127.0.0.1", "[::1]") if is_local(host) else ("*",)
    app = application(store, hosts=hosts, token=token)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", server_header=False)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidArgumentError(
            f"port {port} of {host} cannot be had ({error.strerror}): name another one, or 0 for "
            "any that is free"
        ) from error
    at = f"[{host}]" if ":" in host else host
    query = f"?token={token}" if token else ""
    say(f"{store.url}: http://{at}:{listening.getsockname()[1]}/{query}")
    with listening, suppress(KeyboardInterrupt):  # the way to end it
        uvicorn.Server(config).run(sockets=[listening])


def is_local(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _page(
    store: StateStore, made: Callable[[Request, Query], View]
) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        """Return the page, or its main part alone when the script of a page asks for it."""
        layout = "part.html" if request.headers.get("x-part") else "page.html"
        try:
            view, status = made(request, request.query_params), 200
        except StateStoreError as error:
            status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
            view = View("Not shown", "error.html", {"problem": str(error)})
        return HTMLResponse(written(view, store.url, layout=layout), status)

    return answer


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _TYPES:
        return Response("no such file", 404)
    return Response(static(name), media_type=_TYPES[name])


def _which(request: Request) -> str:
    which: str = request.path_params["which"]
    return which


def _newest(store: StateStore) -> str | None:
    """Return the newest checkpoint as text: a script's numbers are exact up to 2^53 only."""
    number = newest(store)
    return None if number is None else str(number)


def _number(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        return parse_integer(text)
    except ValueError:
        raise InvalidArgumentError(f"{name} is a number, not {text!r:.80}") from None


class _Headers:
    """Adds the headers that every answer has."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand around an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        await self._app(scope, receive, with_headers)


class _WithToken:
    """Lets requests through that bring the token; a link with it leaves it as a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Stand around an application."""
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does, or with 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        given = request.query_params.get("token", "")
        if given and self._fits(given):
            answer: Any = RedirectResponse(str(request.url.remove_query_params("token").path), 303)
            answer.set_cookie(_TOKEN, self._token, httponly=True, samesite="strict")
            await answer(scope, receive, send)
        elif self._fits(request.cookies.get(_TOKEN, "")):
            await self._app(scope, receive, send)
        else:
            await Response("the link with the token is needed", 401)(scope, receive, send)

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())
