"""Serve the pages over HTTP. Nothing here changes a store.

If the server is reachable from other machines, every request needs the token. Requests for other
host names and from pages of other sites are refused, so that another site cannot reach a store
through a browser. The content security policy forbids all resources and scripts from elsewhere. SQL
runs only by POST, with a token that pages of this server contain.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from types import FrameType
from typing import Any, Final

from statestore.catalog.catalog import Checkpoint
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    ParallelismError,
    QueryStoppedError,
    StateNotFoundError,
    StateStoreError,
    StoreNotFoundError,
)
from statestore.extras import needs_extra
from statestore.parsing import parse_integer
from statestore.store import StateStore
from statestore.ui.charts import Axis
from statestore.ui.checkpoint import checkpoint, first_rows, hot_keys, state
from statestore.ui.pages import (
    SCRIPTS,
    STYLES,
    PageView,
    digest_of,
    render,
    static,
    word_field,
)
from statestore.ui.rescale import rescale
from statestore.ui.sql import (
    Profile,
    QueryLimits,
    SqlAnswer,
    compare,
    history,
    key,
    search,
    sql,
    sql_answer,
    sql_profile,
    write_sql_csv,
)
from statestore.ui.trends import TrendQuery, newest, timeline, trends

with needs_extra("ui", "the pages of a store"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import (
        HTMLResponse,
        JSONResponse,
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from statestore.ui.requests import (
        RunningQueries,
        TooManyQueriesError,
        foreign_reason,
        read_form,
    )

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
    # Without a referrer, a browser would send "null" as the origin of the server's own form.
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),  # unless the response has its own
)
_TOKEN: Final = "statestore-token"
_STATUS: Final[Mapping[type[StateStoreError], int]] = {
    StoreNotFoundError: 404,
    CheckpointNotFoundError: 404,
    StateNotFoundError: 404,
    ParallelismError: 400,
    InvalidArgumentError: 400,
    QueryStoppedError: 400,
}
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_ANY_ADDRESS: Final = ("0.0.0.0", "::", "")
_OLD_FORM: Final = "the server was restarted after this page was loaded; run the query again"
_TOO_MANY: Final = "the maximum number of queries is already running; try again in a few seconds"
_RETRY_SECONDS: Final = "5"
_SHUTDOWN_SECONDS: Final = 0.5
_MOST_NUMBER: Final = 2**63 - 1
"""The greatest checkpoint id; it also limits all other numbers in a URL."""
_TYPES: Final = {
    **dict.fromkeys(SCRIPTS, "text/javascript"),
    **dict.fromkeys(STYLES, "text/css"),
}
_CACHED: Final = "private, max-age=31536000, immutable"
_DOWNLOAD: Final = 'attachment; filename="answer.csv"'
_SPOOLED_BYTES: Final = 16 * 1024**2
_SENT_BYTES: Final = 1024**2

Query = Mapping[str, str]


def application(
    store: StateStore,
    *,
    hosts: tuple[str, ...],
    token: str | None,
    limits: QueryLimits,
) -> Starlette:
    """Return the pages of a store as an ASGI application.

    ``hosts`` are the accepted host names, ``*`` for any. If there is a ``token``, each request must
    have it: first as ``?token=``, and then as a cookie. ``limits`` apply to SQL. The attribute
    ``state.queries`` has the running queries.
    """
    queries = RunningQueries(limits.concurrent)
    routes = [
        Route(path, _page(store, make_view)) for path, make_view in _views(store, queries).items()
    ]
    run_sql = _sql_runner(store, queries, limits)
    routes.append(Route("/checkpoint/{which}/sql", run_sql, methods=["POST"]))
    routes.append(Route("/newest", lambda request: JSONResponse({"id": _newest(store)})))
    routes.append(Route("/static/{name:path}", _static))
    middleware = [
        Middleware(_Headers),
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        Middleware(_OwnPagesOnly),
        *([Middleware(_WithToken, token=token)] if token else []),
    ]

    def no_page(request: Request, error: Exception) -> Response:
        problem = f"There is no page {request.url.path}; choose one in the menu"
        view = PageView("No such page", "error.html", {"problem": problem})
        return _response(store, lambda: view, status=404, layout=_layout(request))

    app = Starlette(routes=routes, middleware=middleware, exception_handlers={404: no_page})
    app.state.queries = queries
    return app


def _views(
    store: StateStore, queries: RunningQueries
) -> dict[str, Callable[[Request, Query], PageView]]:
    """Return the function for each page, by its path."""
    return {
        "/": lambda request, query: timeline(
            store, _number(query, "before"), query.get("axis") or Axis.CHECKPOINTS
        ),
        "/trends": lambda request, query: trends(store, _trend_query(query)),
        "/search": lambda request, query: search(
            store, query.get("q", ""), query.get("checkpoint") or "latest"
        ),
        "/compare": lambda request, query: compare(store, query.get("a", ""), query.get("b", "")),
        "/checkpoint/{which}": lambda request, query: checkpoint(store, _find(store, request)),
        "/checkpoint/{which}/state": lambda request, query: state(
            store, _find(store, request), query.get("operator", ""), query.get("state", "")
        ),
        "/checkpoint/{which}/rows": lambda request, query: first_rows(
            store,
            _find(store, request),
            query.get("operator", ""),
            query.get("state", ""),
            _number(query, "rows"),
        ),
        "/checkpoint/{which}/hot": lambda request, query: hot_keys(
            store, _find(store, request), query.get("operator", ""), query.get("state", "")
        ),
        "/checkpoint/{which}/rescale": lambda request, query: rescale(
            store,
            _find(store, request),
            _number(query, "parallelism"),
            balance=query.get("balance") or None,
            rate=_number(query, "rate"),
            request_ms=_number(query, "ms"),
        ),
        "/checkpoint/{which}/key": lambda request, query: key(
            store, _find(store, request), query.get("key", "")
        ),
        "/checkpoint/{which}/history": lambda request, query: history(
            store,
            _find(store, request).checkpoint_id,
            query.get("key", ""),
            query.get("operator", ""),
            query.get("state", ""),
        ),
        "/checkpoint/{which}/sql": lambda request, query: sql(
            store, _find(store, request), query.get("sql", ""), form_token=queries.form_token
        ),
    }


def serve(
    store: StateStore,
    host: str,
    port: int,
    *,
    token: str | None,
    limits: QueryLimits,
    on_listening: Callable[[str], None],
) -> None:
    """Serve a store until the process is stopped; ``on_listening`` receives the URL.

    When the server stops, it cancels queries, and aborts other requests after half a second.
    Threads that still read for them may continue.

    Raises InvalidArgumentError if ``host`` is reachable from other machines and ``token`` is
    missing, or if the port is not available; StoreNotFoundError if there is no store at the URL;
    StorageError if it cannot be reached.
    """
    if not is_local(host) and not token:
        raise InvalidArgumentError(f"{host} can be reached from other machines: pass a token")
    store.checkpoints()  # a URL without a store is refused now, and not on every page
    app = application(store, hosts=host_names(host), token=token, limits=limits)
    config = uvicorn.Config(
        app,
        log_level="warning",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,  # type: ignore[arg-type]
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot listen on port {port} of {host} ({error.strerror}): choose another port, "
            "or 0 for any free port"
        ) from error
    address = f"[{host}]" if ":" in host else host
    query = f"?token={token}" if token else ""
    with listening, suppress(KeyboardInterrupt):  # Ctrl-C ends the server
        on_listening(f"{store.url}: http://{address}:{listening.getsockname()[1]}/{query}")
        _Server(config, app.state.queries).run(sockets=[listening])


def host_names(host: str) -> tuple[str, ...]:
    """Return the accepted host names of a server that listens on ``host``.

    A name of another site that resolves to this server (DNS rebinding) is not accepted. A server on
    all addresses accepts every name. There the token protects the store, because a browser does not
    send the cookie for another name.
    """
    if host in _ANY_ADDRESS:
        return ("*",)
    return (*_LOCAL_NAMES, f"[{host}]" if ":" in host else host.lower())


def is_local(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _page(
    store: StateStore, make_view: Callable[[Request, Query], PageView]
) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        """Return the page, or only its main part if the script of a page requests it."""
        layout = _layout(request)
        return _response(store, lambda: make_view(request, request.query_params), layout=layout)

    return answer


def _layout(request: Request) -> str:
    return "part.html" if request.headers.get("x-part") else "page.html"


def _response(
    store: StateStore,
    make_view: Callable[[], PageView],
    *,
    status: int = 200,
    layout: str = "page.html",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a view as a response; for an error, its page and HTTP status."""
    try:
        view = make_view()
    except StateStoreError as error:
        view = _error_view(error, store.url)
    if view.error is not None:
        view.error.reword(word_field)
        status = _status_of(view.error)
    return HTMLResponse(render(view, store.url, layout=layout), status, headers)


def _error_view(error: StateStoreError, url: str) -> PageView:
    """Return the page for an error; its title is what the store does not have."""
    error.reword(word_field)
    missing, _, rest = str(error).partition(f" in {url}; ")
    title, problem = ("Not shown", missing)
    if rest:
        title, problem = (text[:1].upper() + text[1:] for text in (missing, rest))
    return PageView(title, "error.html", {"problem": problem}, error=error)


def _status_of(error: StateStoreError) -> int:
    """Return the HTTP status for an error."""
    return next(
        (code for error_type, code in _STATUS.items() if isinstance(error, error_type)), 500
    )


def _sql_runner(
    store: StateStore, queries: RunningQueries, limits: QueryLimits
) -> Callable[[Request], Awaitable[Response]]:
    """Return a function that runs the statement of a form."""

    async def run_sql(request: Request) -> Response:
        form = await read_form(request)
        text = form.get("sql", "")

        def answered(cancelled: threading.Event) -> Response:
            shown = _find(store, request)
            if form.get("format") == "csv":
                return _csv_response(store, shown, text, limits, cancelled)
            asked = form.get("profile") or text
            run: Callable[..., SqlAnswer | Profile]
            run = sql_profile if "profile" in form else sql_answer
            answer = run(store, shown, asked, limits=limits, cancelled=cancelled)
            view = sql(store, shown, text, form_token=queries.form_token, answer=answer)
            return HTMLResponse(render(view, store.url))

        async def refused(status: int, problem: str, place: str = "", **headers: str) -> Response:
            def view() -> PageView:
                shown, token = _find(store, request), queries.form_token
                return sql(store, shown, text, form_token=token, problem=problem, place=place)

            return await run_in_threadpool(_response, store, view, status=status, headers=headers)

        if not queries.is_token(form.get("form_token", "")):
            return await refused(403, _OLD_FORM)
        try:
            return await queries.run(request, answered)
        except TooManyQueriesError:
            return await refused(503, _TOO_MANY, **{"retry-after": _RETRY_SECONDS})
        except (InvalidArgumentError, QueryStoppedError) as error:
            return await refused(400, str(error), "\n".join(getattr(error, "__notes__", ())))
        except StateStoreError as error:
            return HTMLResponse(render(_error_view(error, store.url), store.url), _status_of(error))

    return run_sql


def _csv_response(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str,
    limits: QueryLimits,
    cancelled: threading.Event,
) -> Response:
    """Return all rows of an answer as a CSV file.

    The rows are kept until the query has ended, on disk if they are many. So an error in the middle
    of a query is a page and not half a file.
    """
    rows = SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115
    try:
        write_sql_csv(store, checkpoint, text, rows, limits=limits, cancelled=cancelled)
        rows.seek(0)
    except BaseException:
        rows.close()
        raise
    headers = {"content-disposition": _DOWNLOAD}
    return StreamingResponse(_read_and_close(rows), media_type="text/csv", headers=headers)


def _read_and_close(file: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    with file:
        while part := file.read(_SENT_BYTES):
            yield part


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _TYPES:
        return Response("the file does not exist", 404)
    is_current = request.query_params.get("v") == digest_of(name)
    headers = {"cache-control": _CACHED} if is_current else {}
    return Response(static(name), media_type=_TYPES[name], headers=headers)


def _find(store: StateStore, request: Request) -> Checkpoint:
    """Return the checkpoint of a page, for all parts of the page.

    The links on a page have the checkpoint's number, also if only a savepoint keeps it.

    Raises CheckpointNotFoundError, CorruptionError or InvalidArgumentError.
    """
    which: str = request.path_params["which"]
    try:
        return store.checkpoint(which)
    except CheckpointNotFoundError:
        for savepoint in store.maintenance.savepoints():
            if str(savepoint.checkpoint_id) == which:
                return store.checkpoint(savepoint.name)
        raise


def _newest(store: StateStore) -> str | None:
    """Return the newest checkpoint as text: JavaScript numbers are exact only up to 2^53."""
    number = newest(store)
    return None if number is None else str(number)


def _trend_query(query: Query) -> TrendQuery:
    return TrendQuery(
        last=_number(query, "last"),
        size=query.get("size", ""),
        restore_time=query.get("restore_time", ""),
        rate=_number(query, "rate"),
        request_ms=_number(query, "ms"),
        parallelism=_number(query, "parallelism"),
    )


def _number(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        number = parse_integer(text)
    except ValueError:
        raise InvalidArgumentError(f"must be a number, not {text!r:.80}", argument=name) from None
    if abs(number) > _MOST_NUMBER:
        raise InvalidArgumentError(f"is {text!r:.80}; the maximum is {_MOST_NUMBER}", argument=name)
    return number


class _Headers:
    """Adds the common headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and add the headers to its response."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                had = {name for name, _ in message["headers"]}
                own = [(name.encode(), value.encode()) for name, value in _HEADERS]
                missing = [header for header in own if header[0] not in had]
                message = {**message, "headers": [*message["headers"], *missing]}
            await send(message)

        await self._app(scope, receive, with_headers)


class _OwnPagesOnly:
    """Refuses requests from pages of other sites."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, or respond with 403."""
        if scope["type"] == "http":
            request = Request(scope)
            reason = foreign_reason(request.method, request.headers)
            if reason is not None:
                refusal = PlainTextResponse(f"refused: {reason}; open this page yourself", 403)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    """A server that cancels its queries at the first Ctrl-C, so that it stops soon."""

    def __init__(self, config: uvicorn.Config, queries: RunningQueries) -> None:
        """Store the running queries."""
        super().__init__(config)
        self._queries = queries

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to stop."""
        self._queries.cancel_all()
        # A request that is aborted from now on is not an error.
        logging.getLogger("uvicorn.error").disabled = True
        super().handle_exit(sig, frame)


class _WithToken:
    """Accepts requests with the token; a link with the token sets it as a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Wrap an application."""
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, or respond with 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        token = request.query_params.get("token", "")
        if token and self._fits(token):
            answer: Any = RedirectResponse(str(request.url.remove_query_params("token").path), 303)
            answer.set_cookie(_TOKEN, self._token, httponly=True, samesite="strict")
            await answer(scope, receive, send)
        elif self._fits(request.cookies.get(_TOKEN, "")):
            await self._app(scope, receive, send)
        else:
            await Response(
                "this page needs the link with the token, which 'statestore ui' printed", 401
            )(scope, receive, send)

    def _fits(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())
