"""Refuse requests from pages of other sites, and run the SQL of this server's own pages.

A page of another site can make a browser send requests to this server, with the user's cookies. The
browser sets ``Sec-Fetch-Site`` and ``Origin`` to the page that caused the request. If a user
follows a link from elsewhere, the request is accepted, because it only shows a page.

The number of concurrent queries is limited. A query stops when its client disconnects.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import parse_qs

from statestore.extras import needs_extra

with needs_extra("ui", "the pages of a store"):
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

T = TypeVar("T")

_MOST_FORM_BYTES = 1_000_000
_OWN_SITES = ("same-origin", "none")  # "none": a typed URL, or a bookmark


def foreign_reason(method: str, headers: Mapping[str, str]) -> str | None:
    """Return why a request comes from another site; None if it does not.

    Args:
        method: The method of the request.
        headers: Its headers, by lower-case name.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        return f"a page of {origin!r:.80} sent this request"
    site = headers.get("sec-fetch-site", "none")
    if site in _OWN_SITES or _is_followed_link(method, headers):
        return None
    return f"a page of another site sent this request ({site!r:.80})"


def _is_followed_link(method: str, headers: Mapping[str, str]) -> bool:
    return (
        method == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "sec-purpose" not in headers  # a prefetch, which the user did not ask for
    )


class TooManyQueriesError(Exception):
    """The maximum number of concurrent queries is running."""


class RunningQueries:
    """The currently running queries.

    Attributes:
            form_token: The token that a form must send, so that only pages of this server run
                queries.
    """

    def __init__(self, concurrent: int) -> None:
        """Allow ``concurrent`` queries."""
        self.form_token = secrets.token_urlsafe(32)
        self._free = concurrent
        self._threads = ThreadPoolExecutor(concurrent, thread_name_prefix="sql")
        self._cancellations: set[threading.Event] = set()

    def is_token(self, text: str) -> bool:
        """Return whether a form sent the right token."""
        return hmac.compare_digest(text.encode(), self.form_token.encode())

    async def run(self, request: Request, function: Callable[[threading.Event], T]) -> T:
        """Run the function in another thread and return its result.

        The function receives an event, which is set when the client disconnects or the server
        stops. Raises TooManyQueriesError, and the errors of the function.
        """
        if not self._free:
            raise TooManyQueriesError
        cancelled = threading.Event()
        self._free -= 1
        self._cancellations.add(cancelled)
        left = asyncio.create_task(_wait_until_client_left(request))
        try:
            loop = asyncio.get_running_loop()
            result = loop.run_in_executor(self._threads, function, cancelled)
            # If the server cancels this task, nothing else reads the error of the query.
            result.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await asyncio.wait((result, left), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                cancelled.set()
            return await result
        finally:
            cancelled.set()
            left.cancel()
            self._cancellations.remove(cancelled)
            self._free += 1

    def cancel_all(self) -> None:
        """Cancel all running queries."""
        for cancelled in [*self._cancellations]:
            cancelled.set()


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; if a name occurs several times, the last value.

    Raises HTTPException for a text that is not UTF-8 (400), and for a form of more than 1 MB (413).
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_FORM_BYTES:
            raise HTTPException(413, "a form can have at most 1 MB")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise HTTPException(400, f"cannot read the form: {error}") from error
    return {name: values[-1] for name, values in fields.items()}


async def _wait_until_client_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
