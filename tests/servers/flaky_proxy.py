"""Simulate network failures on demand: an HTTP proxy in front of a real server, for tests.

::

    with flaky_proxy(server.endpoint) as proxy:
        storage = S3Storage(url, server.options | {"endpoint_url": proxy.endpoint})
        proxy.fail(Fault.BUSY, times=3)          # the next three requests
        storage.read("a")                        # … and the read succeeds
        assert len(proxy.seen) == 4

Requests are forwarded unchanged, byte for byte, so that signatures stay valid; ``rewrite`` may
replace their headers. The proxy listens on the loopback address, on a free port, until the block
ends.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

__all__ = ["Fault", "FlakyProxy", "Headers", "flaky_proxy"]

Headers = list[tuple[str, str]]
Rewrite = Callable[[str, str, Headers, bytes], Headers]

_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
# These describe the connection and not the request, and a proxy has its own.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Fault(Enum):
    """What the proxy does with a request."""

    BUSY = "503 SlowDown; the server never sees the request"
    RESET = "the server answers, and the connection is reset half-way"
    CUT = "the server answers, and the connection is closed half-way"
    STILL = "the server answers, and after half of it nothing comes any more"
    LOST = "the server does it, and the connection is closed without an answer"
    REFUSED = "the answer of refuse(); the server never sees the request"
    SILENT = "the request is taken, and never answered; the server never sees it"


@dataclass
class FlakyProxy:
    """A running proxy: its address, the requests so far, and the faults to come."""

    endpoint: str
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request, in order of arrival."""

    _refusal: tuple[int, Headers, bytes] | None = None
    _faults: list[Fault] = field(default_factory=list)
    _always: Fault | None = None
    _methods: tuple[str, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, fault: Fault, times: int | None = None, methods: tuple[str, ...] = ()) -> None:
        """Make the next requests fail: ``times`` of them or all, with any method or only these.

        Discards earlier faults and the recorded requests.
        """
        with self._lock:
            self._faults = [] if times is None else [fault] * times
            self._always = fault if times is None else None
            self._methods = methods
            self.seen.clear()

    def refuse(
        self,
        status: int,
        headers: dict[str, str],
        body: bytes,
        methods: tuple[str, ...],
        times: int | None = None,
    ) -> None:
        """Answer the next requests of these methods this way; they never reach the server."""
        self.fail(Fault.REFUSED, times, methods)
        self._refusal = status, list(headers.items()), body

    def take(self, method: str, path: str) -> Fault | None:
        """Record a request; return its fault."""
        with self._lock:
            self.seen.append((method, path))
            if self._methods and method not in self._methods:
                return None
            return self._faults.pop() if self._faults else self._always


@contextmanager
def flaky_proxy(upstream: str, rewrite: Rewrite | None = None) -> Iterator[FlakyProxy]:
    """Run a proxy in front of ``upstream``, an ``http://`` URL, until the block ends.

    ``rewrite`` gets the method, path, headers and body of each request, and returns its headers.
    """
    address = urlsplit(upstream).netloc
    closing = threading.Event()

    class Handler(_Handler):
        def do_any(self) -> None:
            self.handle_request(proxy, address, rewrite, closing)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        proxy = FlakyProxy(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            closing.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    def handle_request(
        self, proxy: FlakyProxy, address: str, rewrite: Rewrite | None, closing: threading.Event
    ) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = proxy.take(self.command, self.path)
        if fault is Fault.SILENT:
            closing.wait()
            self.close_connection = True
        elif fault is Fault.REFUSED:
            assert proxy._refusal is not None
            self._answer(*proxy._refusal)
        elif fault is Fault.BUSY:
            self._answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
        else:
            headers = list(self.headers.items())
            if rewrite is not None:
                headers = rewrite(self.command, self.path, headers, body)
            self._pass_on(address, headers, body, fault, closing)

    def _pass_on(
        self,
        address: str,
        headers: Headers,
        body: bytes,
        fault: Fault | None,
        closing: threading.Event,
    ) -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            if name.lower() != "expect":  # answered before the body was read
                connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        whole = answer.read()
        connection.close()
        if fault is Fault.LOST:
            self.close_connection = True
            return
        self._answer(answer.status, answer.getheaders(), whole, fault)
        if fault is Fault.STILL:
            closing.wait()

    def _answer(
        self, status: int, headers: Headers, body: bytes, fault: Fault | None = None
    ) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # for HEAD: the length of the body of a GET
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body if fault is None else body[: len(body) // 2])
        self.wfile.flush()
        if fault is None:
            return
        self.close_connection = True
        if fault is Fault.RESET:
            # A linger time of zero makes closing send RST instead of FIN.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.rfile.close()
            self.wfile.close()
            self.connection.close()
