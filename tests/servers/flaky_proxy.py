"""Simulate network failures on demand: an HTTP proxy in front of a real server, for tests.

::

    with flaky_proxy(server.endpoint) as proxy:
        storage = S3Storage(url, server.options | {"endpoint_url": proxy.endpoint})
        proxy.fail(Fault.BUSY, times=3)          # the next three requests
        storage.read("a")                        # … and the read succeeds
        assert len(proxy.seen) == 4

    proxy.weather = Weather(latency_seconds=(0.0, 0.02), faults={Fault.LOST: 0.001})

Requests are forwarded unchanged, byte for byte, so that signatures stay valid; ``rewrite`` may
replace their headers. ``choose`` may draw a fault for each request, as ``bad_network.py`` does. The
proxy listens on the loopback address, on a free port, until the block ends.
"""

from __future__ import annotations

import http.client
import io
import random
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

__all__ = ["LATE_SECONDS", "Fault", "FlakyProxy", "Headers", "Weather", "flaky_proxy"]

Headers = list[tuple[str, str]]
Rewrite = Callable[[str, str, Headers, bytes], Headers]

PIECES, PIECE_SECONDS = 8, 0.02
LATE_SECONDS = 0.5

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
    STALE = "the server answers, and the connection is closed later, whatever was sent meanwhile"
    LATE = "the connection is closed without an answer; the server gets the request later"
    SLOW_BODY = "the server gets the body in pieces, with pauses"


Choose = Callable[[str, str, Headers], Fault | None]
"""Returns the fault of a request, from its method, path and headers."""


@dataclass(frozen=True, kw_only=True)
class Weather:
    """The lasting state of a network: each request has a delay, and some have a fault at random.

    Attributes:
        latency_seconds: the shortest and longest delay of a request.
        bytes_per_second: the bandwidth of each request and answer; None for no limit.
        faults: the share of requests with each fault.
        pause_seconds: how long a connection without an answer stays open, and a stale one.
    """

    latency_seconds: tuple[float, float] = (0.0, 0.0)
    bytes_per_second: float | None = None
    faults: Mapping[Fault, float] = field(default_factory=dict)
    pause_seconds: float = 1.0

    def fault(self, moments: random.Random) -> Fault | None:
        """Return the fault of the next request, usually None."""
        left = moments.random()
        for fault, share in self.faults.items():
            left -= share
            if left < 0:
                return fault
        return None

    def seconds_for(self, size_bytes: int) -> float:
        """Return how long this many bytes take."""
        return size_bytes / self.bytes_per_second if self.bytes_per_second else 0.0


@dataclass
class FlakyProxy:
    """A running proxy: its address, the requests so far, and the faults to come."""

    endpoint: str
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request, in order of arrival; not recorded in a weather."""

    weather: Weather | None = None
    """Delays, and faults of requests for which :meth:`fail` has none."""

    choose: Choose | None = None
    """Chooses these faults instead of the weather."""

    counts: Counter[str] = field(default_factory=Counter)
    """The number of requests in a weather by method, and of faults by name."""

    _refusal: tuple[int, Headers, bytes] | None = None
    _faults: deque[Fault | None] = field(default_factory=deque)
    _always: Fault | None = None
    _methods: tuple[str, ...] = ()
    _late: list[threading.Thread] = field(default_factory=list)
    _moments: random.Random = field(default_factory=random.Random)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(
        self,
        fault: Fault,
        times: int | None = None,
        methods: tuple[str, ...] = (),
        after: int = 0,
    ) -> None:
        """Make the next requests fail: ``times`` of them or all, with any method or only these.

        If ``times`` is set, the first ``after`` of these requests do not fail.
        Discards earlier faults and the recorded requests.
        """
        with self._lock:
            planned: list[Fault | None] = [] if times is None else [fault] * times
            self._faults = deque([None] * after + planned)
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

    def calm(self) -> None:
        """End the faults of :meth:`fail`; the weather stays."""
        self.fail(Fault.BUSY, times=0)

    def take(self, method: str, path: str, headers: Headers) -> Fault | None:
        """Record a request; return its fault."""
        with self._lock:
            if self.weather is None:
                self.seen.append((method, path))
            fault = self._fault_of(method, path, headers)
            if self.weather is not None:
                self.counts[method] += 1
                self.counts.update([fault.name] if fault else [])
            return fault

    def _fault_of(self, method: str, path: str, headers: Headers) -> Fault | None:
        if not self._methods or method in self._methods:
            planned = self._faults.popleft() if self._faults else self._always
            if planned is not None:
                return planned
        if self.choose is not None:
            return self.choose(method, path, headers)
        return self.weather.fault(self._moments) if self.weather is not None else None

    def delay(self, size_bytes: int, *, is_request: bool) -> None:
        """Wait as long as the weather makes a request or an answer of this size take."""
        weather = self.weather
        if weather is not None:
            latency = self._moments.uniform(*weather.latency_seconds) if is_request else 0.0
            time.sleep(latency + weather.seconds_for(size_bytes))

    @property
    def pause_seconds(self) -> float | None:
        """How long a silent connection stays open; None for as long as the proxy runs."""
        return None if self.weather is None else self.weather.pause_seconds


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

    with _Server(("127.0.0.1", 0), Handler) as server:
        proxy = FlakyProxy(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            closing.set()
            server.shutdown()
            thread.join()
            for late in proxy._late:
                late.join()


class _Server(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False
    request_queue_size = 256  # many clients connect together


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    def handle(self) -> None:
        """Serve the requests of a connection, until either side ends it."""
        with suppress(ConnectionError):  # killed clients reset their connections
            super().handle()

    def handle_request(
        self, proxy: FlakyProxy, address: str, rewrite: Rewrite | None, closing: threading.Event
    ) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = proxy.take(self.command, self.path, list(self.headers.items()))
        proxy.delay(len(body), is_request=True)
        if fault is Fault.SILENT:
            closing.wait(proxy.pause_seconds)
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
            if fault is Fault.LATE:
                late = threading.Thread(target=self._forward_late, args=(address, headers, body))
                proxy._late.append(late)
                late.start()
                self.close_connection = True
            else:
                self._pass_on(proxy, address, headers, body, fault, closing)

    def _pass_on(
        self,
        proxy: FlakyProxy,
        address: str,
        headers: Headers,
        body: bytes,
        fault: Fault | None,
        closing: threading.Event,
    ) -> None:
        status, found, whole = self._forward(address, headers, body, fault)
        if fault is Fault.LOST:
            self.close_connection = True
            return
        proxy.delay(len(whole), is_request=False)
        self._answer(status, found, whole, None if fault is Fault.SLOW_BODY else fault)
        if fault in (Fault.STILL, Fault.STALE):
            closing.wait(proxy.pause_seconds)

    def _forward(
        self, address: str, headers: Headers, body: bytes, fault: Fault | None = None
    ) -> tuple[int, Headers, bytes]:
        connection = http.client.HTTPConnection(address, timeout=60)
        try:
            return self._answer_over(connection, headers, body, fault)
        finally:
            connection.close()

    def _answer_over(
        self,
        connection: http.client.HTTPConnection,
        headers: Headers,
        body: bytes,
        fault: Fault | None,
    ) -> tuple[int, Headers, bytes]:
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            if name.lower() != "expect":  # answered before the body was read
                connection.putheader(name, value)
        if fault is Fault.SLOW_BODY:
            connection.endheaders()
            size = len(body) // PIECES + 1
            for start in range(0, len(body), size):
                connection.send(body[start : start + size])
                time.sleep(PIECE_SECONDS)
        else:
            connection.endheaders(body or None)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()

    def _forward_late(self, address: str, headers: Headers, body: bytes) -> None:
        time.sleep(LATE_SECONDS)
        self._forward(address, headers, body)

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
        is_whole = fault is None or fault is Fault.STALE
        self.wfile.write(body if is_whole else body[: len(body) // 2])
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
            self.wfile = io.BytesIO()  # the base class flushes it once more
