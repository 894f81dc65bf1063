"""Translate Google's XML requests into JSON requests, so that delta-rs can use fake-gcs-server.

::

    with xml_requests(server.endpoint) as endpoint:
        DeltaTable(url, storage_options=…endpoint…)

delta-rs writes an object with ``PUT /bucket/object``, optionally with ``x-goog-if-generation-match:
0``. The same request to fake-gcs-server is ``POST …/o?uploadType=multipart&ifGenerationMatch=0``,
so it is translated. (With ``uploadType=media``, the server ignores the condition.) fake-gcs-server
ignores ``start-after`` in listings, so the keys up to it are removed here. All other requests are
forwarded unchanged.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

__all__ = ["xml_requests"]

_CONTENTS = re.compile(rb"<Contents><Key>([^<]*)</Key>.*?</Contents>", re.DOTALL)
_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@contextmanager
def xml_requests(upstream: str) -> Iterator[str]:
    """Yield the address that accepts XML requests, until the block ends."""
    address = urlsplit(upstream).netloc

    class Handler(_Handler):
        def do_any(self) -> None:
            self.pass_on(address)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    def pass_on(self, address: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        method, path = self.command, self.path
        kept = {k: v for k, v in self.headers.items() if k.lower() not in _OF_THE_CONNECTION}
        if method == "PUT" and not path.startswith("/upload/"):
            name, path = _json_put(path, self.headers.get("x-goog-if-generation-match"))
            method, line = "POST", uuid.uuid4().hex
            kept["Content-Type"] = f"multipart/related; boundary={line}"
            body = _two_parts(line, json.dumps({"name": name}).encode(), body)
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request(method, path, body or None, kept | {"Host": address})
        answer = connection.getresponse()
        whole = answer.read()
        connection.close()
        headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in _OF_THE_CONNECTION]
        if method != self.command and answer.status == 200:
            made = json.loads(whole)
            headers += [("ETag", made["etag"]), ("x-goog-generation", made["generation"])]
            whole = b""
        after = parse_qs(urlsplit(path).query).get("start-after")
        if after and answer.status == 200:
            whole = _CONTENTS.sub(lambda one: one[0] if one[1].decode() > after[0] else b"", whole)
        self.send_response_only(answer.status)
        for name, value in headers:
            self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)


def _json_put(path: str, generation: str | None) -> tuple[str, str]:
    """Return the name of the object that a request puts, and the path of the JSON request."""
    bucket, _, key = urlsplit(path).path.lstrip("/").partition("/")
    wanted = {"uploadType": "multipart"}
    if generation is not None:
        wanted["ifGenerationMatch"] = generation
    return unquote(key), f"/upload/storage/v1/b/{quote(unquote(bucket))}/o?{urlencode(wanted)}"


def _two_parts(line: str, about: bytes, data: bytes) -> bytes:
    """Return the body of a multipart upload, whose parts are separated by a line."""
    between = f"--{line}\r\nContent-Type: %s\r\n\r\n".encode()
    parts = ((b"application/json", about), (b"application/octet-stream", data))
    return (
        b"".join(between % kind + part + b"\r\n" for kind, part in parts) + f"--{line}--".encode()
    )
