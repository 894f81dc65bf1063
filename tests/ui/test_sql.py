"""SQL on the pages: who can start a query, its limits, and how it is stopped."""

from __future__ import annotations

import asyncio
import gc
import http.client
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from urllib.parse import urlencode, urlsplit

import pytest
from starlette.requests import Request
from starlette.types import Message

from statestore import StateStore
from statestore.cli.command import Verb
from statestore.cli.verbs.ui import serve_store
from statestore.errors import QueryStoppedError
from statestore.ui.app import host_names
from statestore.ui.requests import RunningQueries
from statestore.ui.sql import QueryLimits
from tests.ui.conftest import LIMITS, Pages

pytestmark = pytest.mark.slow  # they need a server
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
PATH = "/checkpoint/latest/sql"
Answer = tuple[int, str, http.client.HTTPMessage]


def send(
    address: str, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def token_of(address: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', send(address, "GET", PATH)[1])
    assert found
    return found[1]


def ask(address: str, sql: str, token: str | None = None, **headers: str) -> Answer:
    own = token_of(address) if token is None else token
    form = urlencode({"sql": sql, "form_token": own})
    return send(address, "POST", PATH, form, headers)


def begin(address: str, sql: str) -> socket.socket:
    """Send a form and return the connection, without waiting for the response."""
    form = urlencode({"sql": sql, "form_token": token_of(address)})
    place = urlsplit(address)
    assert place.hostname is not None
    connection = socket.create_connection((place.hostname, place.port))
    head = f"POST {PATH} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(form)}\r\n\r\n"
    connection.sendall((head + form).encode())
    return connection


def until_status(address: str, status: int) -> Answer:
    """Request until the response has a status: queries start and end with a delay."""
    deadline = time.monotonic() + 30
    while (answer := ask(address, "SELECT 17 AS n"))[0] != status:
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)
    return answer


def test_a_form_with_the_token_runs(pages: Pages, store: StateStore) -> None:
    status, body, _ = ask(pages(store), "SELECT count(*) + 4000 AS n FROM total")
    assert status == 200
    assert ">4104</td>" in body


def test_values_of_every_type_are_shown(pages: Pages, store: StateStore) -> None:
    status, body, _ = ask(pages(store), "SELECT * FROM test_all_types()")
    assert status == 200
    for text in ("24:00:00", "24:00:00-15:59:59", str(2**128 - 1), "10101", "infinity"):
        assert text in body
    assert "out of range" not in body


def profile_of(address: str, sql: str, of: str = "") -> dict[str, list[str]]:
    """Return the cells of a profile by column; the last one is the text of its histogram."""
    form = urlencode({"sql": sql, "profile": of, "form_token": token_of(address)})
    status, body, _ = send(address, "POST", PATH, form)
    assert status == 200, body
    rows = body.partition('<table id="profile"')[2].partition("<tbody>")[2].split("<tr>")[1:]
    found = {}
    for row in rows:
        name, *cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        spoken = re.search(r'aria-label="([^"]*)"', cells[-1])
        found[name] = [*cells[:-1], spoken[1] if spoken else ""]
    return found


def test_a_profile_has_the_figures_of_each_column(pages: Pages, store: StateStore) -> None:
    sql = """SELECT range AS n, range % 3 = 0 AS b, 1e300 * 1e10 AS inf, [range] AS l, 'x' AS c,
        TIMESTAMP '2026-01-31' + range * INTERVAL 1 HOUR AS t, range AS n FROM range(24)
        -- the last line;"""
    found = profile_of(pages(store), sql)
    assert found["n"][:5] == ["int64", "0", "24", "0", "23"]
    assert found["n"][5].count(": 2 rows; ") == 12
    assert found["b"][:5] == ["bool", "0", "2", "false", "true"]
    assert found["b"][5] == "false: 16 rows; true: 8 rows; "
    assert found["inf"][5] == ""
    assert found["l"] == ["list&lt;l: int64&gt;", "0", "", "", "", ""]
    assert found["t"][3:5] == ["2026-01-31T00:00:00", "2026-01-31T23:00:00"]
    assert found["t"][5].startswith("2026-01-31 00:00:00 UTC to 2026-01-31 01:55:00 UTC: 2 rows; ")
    assert found["c"] == ["string", "0", "1", "x", "x", ""]


def test_a_view_of_the_schema_has_a_profile(pages: Pages, store: StateStore) -> None:
    """Whatever is in the form."""
    found = profile_of(pages(store), "SELECT", "SELECT * FROM total")
    assert found["total"][:5] == ["int64", "0", "104", "0", "309"]
    assert profile_of(pages(store), "SELECT 1 AS n WHERE false")["n"][1:3] == ["0", "0"]


def test_a_link_fills_in_the_text_and_runs_nothing(pages: Pages, store: StateStore) -> None:
    status, body, _ = send(pages(store), "GET", f"{PATH}?{urlencode({'sql': 'SELECT 40 + 2'})}")
    assert status == 200
    assert ">SELECT 40 + 2</textarea>" in body
    assert 'id="answer"' not in body


def csv_of(address: str, sql: str) -> Answer:
    form = urlencode({"sql": sql, "form_token": token_of(address), "format": "csv"})
    return send(address, "POST", PATH, form)


def test_a_download_has_all_rows(pages: Pages, store: StateStore) -> None:
    """Also those beyond the first ones, which the page shows."""
    sql = "SELECT range AS n, 'a,\"b\"' AS t, NULL AS u, [1, 2] AS v, '' AS w FROM range(2500)"
    status, body, headers = csv_of(pages(store), sql)
    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert headers["content-disposition"] == 'attachment; filename="answer.csv"'
    header, *lines = body.splitlines()
    assert header == "n,t,u,v,w"
    assert lines == [f'{n},"a,""b""",,"[1, 2]",""' for n in range(2500)]


def test_a_download_that_fails_is_a_page(pages: Pages, store: StateStore) -> None:
    """The error comes after rows that could have been sent already."""
    sql = "SELECT CASE WHEN range = 199999 THEN error('late') ELSE range END FROM range(200000)"
    status, body, headers = csv_of(pages(store), sql)
    assert status == 400
    assert headers["content-type"].startswith("text/html")
    assert "late" in body


@pytest.mark.parametrize("token", ["", "wrong", "ü"])
def test_without_the_token_nothing_runs(pages: Pages, store: StateStore, token: str) -> None:
    """The form keeps the text, and then has the right token."""
    address = pages(store)
    status, body, _ = ask(address, "SELECT 40 + 2", token)
    assert status == 403
    assert 'id="answer"' not in body
    assert ">SELECT 40 + 2</textarea>" in body
    assert token_of(address) in body


def test_each_server_has_its_own_token(pages: Pages, store: StateStore) -> None:
    old = token_of(pages(store))
    new = pages(store, limits=replace(LIMITS, concurrent=1))
    assert ask(new, "SELECT 1", old)[0] == 403
    assert len(old) >= 32


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
]
LINK = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}


@pytest.mark.parametrize("headers", FOREIGN)
def test_requests_from_pages_of_other_sites_are_refused(
    pages: Pages, store: StateStore, headers: dict[str, str]
) -> None:
    address = pages(store)
    for path in ("/", PATH, "/newest", "/static/ui.js", "/compare?a=1&b=2"):
        assert send(address, "GET", path, headers=headers)[0] == 403, path
    assert ask(address, "SELECT 1", **headers)[0] == 403


def test_a_link_from_another_site_opens_a_page_but_sends_no_form(
    pages: Pages, store: StateStore
) -> None:
    address = pages(store)
    assert send(address, "GET", PATH, headers=LINK)[0] == 200
    assert send(address, "GET", PATH, headers=LINK | {"Sec-Purpose": "prefetch"})[0] == 403
    assert ask(address, "SELECT 1", **LINK)[0] == 403


def test_requests_from_its_own_pages_are_accepted(pages: Pages, store: StateStore) -> None:
    address = pages(store)
    own = {"Origin": address, "Sec-Fetch-Site": "same-origin"}
    assert ask(address, "SELECT 1", **own)[0] == 200
    assert send(address, "GET", "/", headers={"Sec-Fetch-Site": "none"})[0] == 200


def test_the_accepted_host_names_follow_from_the_servers_address() -> None:
    local = ("localhost", "127.0.0.1", "[::1]")
    assert host_names("10.1.2.3") == (*local, "10.1.2.3")
    assert host_names("fe80::1") == (*local, "[fe80::1]")
    assert host_names("Build.example") == (*local, "build.example")
    assert host_names("0.0.0.0") == host_names("::") == ("*",)


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "", "[::2]"])
def test_another_host_name_is_refused(pages: Pages, store: StateStore, name: str) -> None:
    address = pages(store)
    assert send(address, "GET", "/newest", headers={"Host": name})[0] == 400


def test_a_time_limit_stops_a_query(pages: Pages, store: StateStore) -> None:
    limits = QueryLimits(time_limit="500ms", memory_bytes=2**30, concurrent=1)
    address = pages(store, limits=limits)
    status, body, _ = ask(address, ENDLESS)
    assert status == 400
    assert "exceeded its time limit of 500 ms" in body
    assert ask(address, "SELECT 1")[0] == 200


def test_a_memory_limit_stops_a_query(pages: Pages, store: StateStore) -> None:
    limits = QueryLimits(time_limit="5m", memory_bytes=100_000_000, concurrent=1)
    sql = "SELECT count(DISTINCT (a.range, b.range)) FROM range(100000) a, range(100000) b"
    status, body, _ = ask(pages(store, limits=limits), sql)
    assert status == 400
    assert "the query exceeds its memory limit" in body


def test_queries_above_the_limit_are_refused_and_a_disconnect_ends_a_query(
    pages: Pages, store: StateStore
) -> None:
    """The time limit is long: these queries end only because their clients disconnect."""
    limits = QueryLimits(time_limit="1h", memory_bytes=2**30, concurrent=2)
    address = pages(store, limits=limits)
    clients = [begin(address, ENDLESS) for _ in range(2)]
    _, body, headers = until_status(address, 503)
    assert int(headers["retry-after"]) > 0
    assert 'role="alert"' in body
    assert send(address, "GET", "/")[0] == 200
    for client in clients:
        client.close()
    assert ">17</td>" in until_status(address, 200)[1]


def test_many_queries_do_not_block_the_other_pages(pages: Pages, store: StateStore) -> None:
    address = pages(store)
    with ThreadPoolExecutor(45) as pool:
        foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        path = f"{PATH}?{urlencode({'sql': ENDLESS})}"
        answers = pool.map(lambda _: send(address, "GET", path, headers=foreign)[0], range(45))
        assert {*answers} == {403}
    assert send(address, "GET", "/")[0] == 200


def test_a_form_that_is_too_large_or_is_not_text_is_refused(
    pages: Pages, store: StateStore
) -> None:
    address = pages(store)
    assert ask(address, "x" * 1_000_001)[0] == 413
    assert send(address, "POST", PATH, "sql=%ff")[0] == 400
    assert send(address, "POST", "/checkpoint/9/sql", f"form_token={token_of(address)}")[0] == 404


SLOW_PAGE = """
import sys, time
from statestore.cli.main import main
from statestore.ui import app
app.timeline = lambda *arguments: time.sleep(600)
main(sys.argv[1:])
"""


assert isinstance(serve_store, Verb)
SERVING = [example for example in serve_store.examples if "--to " not in example]


@pytest.mark.long_cases(
    "statestore ui --address :0 --store s3://bucket/fraud-a page",
    "STATESTORE_UI_TOKEN=secret statestore ui --address 0.0.0.0 --store ./fraud-nothing",
)
@pytest.mark.parametrize(
    ("example", "work"), [*zip(SERVING, ("queries", "a page", "nothing"), strict=True)]
)
def test_ctrl_c_stops_the_command_immediately(store: StateStore, example: str, work: str) -> None:
    """It ends without an error, even while queries run or a page's storage hangs."""
    variables, _, text = example.rpartition("statestore ")
    words, environment = shlex.split(text), dict(each.split("=") for each in variables.split())
    # If an option is repeated, the last one counts: this store, and any free port.
    host = "0.0.0.0" if "0.0.0.0" in words else ""
    options = ("--store", store.url, "--address", f"{host}:0")
    command = [sys.executable, "-c", SLOW_PAGE, *words, *options]
    with (
        subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process,
        ThreadPoolExecutor(1) as pool,
        ExitStack() as clients,
    ):
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(
            rf"{re.escape(store.url)}: http://[0-9.]+:(\d+)/(\?token=secret)?\n", line
        )
        assert found, line
        assert bool(found[2]) == ("STATESTORE_UI_TOKEN" in environment)
        address, cookie = f"http://127.0.0.1:{found[1]}", {}
        if found[2]:
            kept = send(address, "GET", f"/newest{found[2]}")[2]["set-cookie"]
            cookie = {"Cookie": kept.partition(";")[0]}
        assert send(address, "GET", "/newest", headers=cookie)[1] == '{"id":"3"}'
        if work == "queries":
            for _ in range(2):
                clients.enter_context(begin(address, ENDLESS))
            until_status(address, 503)
        elif work == "a page":
            hanging = pool.submit(send, address, "GET", "/")
            time.sleep(0.5)
            assert not hanging.done()
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        # One second on an idle machine.
        assert time.monotonic() - begun < (1 if os.getloadavg()[0] < 1 else 10)
        assert process.stderr.read() == ""


def test_the_error_of_a_query_of_a_cancelled_request_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that stops cancels its requests; their queries end with an error after that."""

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    def query(cancelled: threading.Event) -> None:
        assert cancelled.wait(60)
        raise QueryStoppedError("the query was cancelled")

    async def stop_during_a_query() -> None:
        queries = RunningQueries(1)
        request = Request({"type": "http"}, receive)
        running = asyncio.create_task(queries.run(request, query))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()
        # With one thread, the next query runs when the cancelled one has ended.
        await queries.run(request, lambda cancelled: None)

    asyncio.run(stop_during_a_query())
    gc.collect()
    assert caplog.messages == []


def test_a_nested_answer_is_an_error_on_the_page(pages: Pages, store: StateStore) -> None:
    status, body, _ = ask(pages(store), f"SELECT NULL::INTEGER{'[]' * 900} AS x")
    assert status == 400
    assert "nested levels" in body
