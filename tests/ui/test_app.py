"""The pages over HTTP: access, the browser's restrictions, and missing objects."""

from __future__ import annotations

import html
import http.client
import os
import re
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from statestore import StateStore
from statestore.cli.restore_records import keep_restore
from statestore.errors import InvalidArgumentError, StoreNotFoundError
from statestore.format.left_out import LeftOutState
from statestore.restore.restart_time import MeasuredRestore
from statestore.ui.app import POLICY, is_local, serve
from statestore.ui.checkpoint import SHOWN
from statestore.ui.pages import SCRIPTS, STYLES, word_field
from statestore.ui.trends import timeline
from tests.support.stores import uncompacted
from tests.syntax import ROOT
from tests.ui.conftest import LIMITS, SCRIPT, Pages
from tests.ui.test_sql import ask

pytestmark = pytest.mark.slow  # they need a server


def get(
    address: str, path: str = "/", *, method: str = "GET", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, answer.headers


def test_each_response_has_the_security_policy(pages: Pages, store: StateStore) -> None:
    address = pages(store)
    for path in ("/", "/checkpoint/1", "/checkpoint/9", "/static/ui.js", "/newest"):
        _, _, headers = get(address, path)
        assert headers["content-security-policy"] == POLICY
        assert headers["access-control-allow-origin"] is None
    assert "unsafe" not in POLICY


def test_browsers_keep_only_files_whose_address_has_their_digest(
    pages: Pages, store: StateStore
) -> None:
    address = pages(store)
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', get(address)[1])
    assert len(files) == len(SCRIPTS) + len(STYLES)
    for path in files:
        status, _, headers = get(address, path)
        assert (status, headers["cache-control"]) == (200, "private, max-age=31536000, immutable")
        assert get(address, path.partition("?")[0])[2].get_all("cache-control") == ["no-store"]
    assert get(address)[2]["cache-control"] == "no-store"
    for path in ("/static/report.css", "/static/vendor/vendor.toml", "/static/..%2fpages.py"):
        assert get(address, path)[0] == 404


def test_a_foreign_host_name_is_refused(pages: Pages, store: StateStore) -> None:
    """A page of another site cannot reach the store through its own host name."""
    assert get(pages(store), Host="evil.example")[0] == 400


def test_no_request_changes_the_store(pages: Pages, store: StateStore) -> None:
    address = pages(store)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert get(address, "/checkpoint/1", method=method)[0] == 405


def test_with_a_token_each_request_needs_it(pages: Pages, store: StateStore) -> None:
    address = pages(store, token="secret")
    for path in ("/", "/newest", "/static/ui.css", "/checkpoint/1?token=wrong"):
        assert get(address, path)[0] == 401
    status, _, headers = get(address, "/checkpoint/1?token=secret")
    assert (status, headers["location"]) == (303, "/checkpoint/1")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert get(address, "/checkpoint/1", Cookie=cookie.partition(";")[0])[0] == 200


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/checkpoint/9", 404, "<h1>No checkpoint 9</h1>"),
        ("/checkpoint/1/state?operator=x&state=y", 404, "x"),
        ("/checkpoint/1/rescale?parallelism=129", 400, "129"),
        ("/checkpoint/1/rescale?parallelism=many", 400, "parallelism must be a number"),
        ("/checkpoint/1/rescale?parallelism=2&balance=x", 400, "weight of ranges"),
        ("/?before=x", 400, "before must be a number"),
        ("/compare?a=1&b=9", 404, "no checkpoint 9"),
        ("/?axis=x", 400, "the axis can be checkpoints or time"),
        ("/checkpoint/1/rescale?ms=-1", 400, "must be at least 0"),
        ("/checkpoint/1/rows?operator=totals&state=total&rows=0", 400, "between 1 and 1,000"),
        ("/checkpoints", 404, "There is no page /checkpoints"),
    ],
)
def test_a_missing_object_is_named(
    pages: Pages, store: StateStore, path: str, status: int, message: str
) -> None:
    found, body, _ = get(pages(store), path)
    assert found == status
    assert message in body


def test_measured_restores_predict_the_time_and_are_shown(
    pages: Pages, store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Rescale and Trends; numbers in the form replace them."""
    address = pages(store)
    rescale = "/checkpoint/1/rescale?parallelism=3"
    body = get(address, rescale)[1]
    assert "100.0 MB/s, 20 ms per request: a guess" in body
    assert 'id="measured"' not in body
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for seconds, predicted in ((4.0, None), (4.2, 4.0), (4.0, 4.1)):
        task = max(store.plan(parallelism=3, checkpoint=1).subtasks, key=lambda t: t.size_bytes)
        restore = MeasuredRestore(
            at_ms=1_790_000_000_000,
            checkpoint_id=1,
            parallelism=3,
            size_bytes=task.size_bytes,
            requests=task.requests,
            seconds=seconds,
            predicted_seconds=predicted,
        )
        keep_restore(os.environ, store.checkpoint(1).manifest.store_id, restore)
    body = get(address, rescale)[1]
    assert "as 3 restores on this machine took" in body
    assert "measured: 3 restores at this parallelism and size; between 4 s and 4.2 s" in body
    table = body.partition('id="measured"')[2].partition("</table>")[0]
    assert table.count('<th scope="row"') == 3
    assert ">+5 %<" in table
    assert ">-2 %<" in table
    assert "as 3 restores on this machine took" in get(address, "/trends")[1]
    assert "50.0 MB/s, 20 ms per request: as passed" in get(address, f"{rescale}&rate=50")[1]


def test_rows_of_changes_are_explained_where_they_are_counted(pages: Pages, tmp_path: Path) -> None:
    """Files have more rows than a restore or a query returns."""
    store = uncompacted(tmp_path / "changed")
    with store.snapshot(parallelism=1) as checkpoint:
        rows = [{"k": f"k{number}", "v": number} for number in range(100)]
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=8)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "s", [{"k": "k1", "v": -1}, {"k": "new", "v": 0}])
    explained = (
        "rows 100 + 2: 100 in base files, and 2 changed or deleted rows that a restore applies to "
        "them"
    )
    address = pages(store)
    assert explained in get(address, "/checkpoint/2")[1]
    assert "a restore applies" not in get(address, "/checkpoint/1")[1]
    body = get(address, "/checkpoint/2/state?operator=u&state=s")[1]
    assert explained in body
    known = store.checkpoint().manifest.keyed_entry("u", "s").contents
    assert ("which makes 101 rows" in body) == (known is not None)


def test_a_key_without_rows_is_one_sentence(pages: Pages, store: StateStore) -> None:
    body = get(pages(store), "/checkpoint/3/key?key=u7")[1]
    sentence = f"1 row of key u7. No rows: totals.{html.escape(SCRIPT)}."
    assert sentence in " ".join(body.split())
    assert body.count("<h2") == 1
    body = get(pages(store), "/checkpoint/3/key?key=nobody")[1]
    assert "No state of checkpoint 3 has a row of key nobody." in body
    assert "<h2" not in body


def test_two_equal_checkpoints_are_one_sentence(pages: Pages, store: StateStore) -> None:
    body = get(pages(store), "/compare?a=2&b=2")[1]
    assert "Checkpoints 2 and 2 are the same." in body
    assert "<table" not in body


def test_an_sql_error_is_shown_on_its_page(pages: Pages, store: StateStore) -> None:
    status, body, _ = ask(pages(store), "DROP TABLE total")
    assert status == 400
    assert 'role="alert"' in body
    assert "a query must be a SELECT" in body
    body = ask(pages(store), 'SELECT "user", nope\nFROM total')[1]
    assert "<pre>LINE 1: SELECT &#34;user&#34;, nope\n                       ^^^^</pre>" in body


LONG = "9" * 5000


@pytest.mark.parametrize(
    "path",
    [
        f"/checkpoint/{LONG}",
        f"/checkpoint/1/rescale?parallelism={LONG}",
        f"/checkpoint/1/rescale?rate={'9' * 400}",
        f"/checkpoint/1/rescale?rate={LONG}",
        "/checkpoint/1/rescale?rate=-1",
        f"/?before={LONG}",
        f"/compare?a=1&b={LONG}",
        f"/checkpoint/{LONG}/sql",
        f"/checkpoint/{LONG}/key?key=u1",
    ],
)
def test_a_number_that_is_too_large_is_an_error(pages: Pages, store: StateStore, path: str) -> None:
    status, body, _ = get(pages(store), path)
    assert status == 400
    assert 'role="alert"' in body


def test_a_key_can_be_any_text(pages: Pages, store: StateStore) -> None:
    assert get(pages(store), f"/checkpoint/1/key?key={LONG}")[0] == 200


def test_a_claim_without_a_commit_is_shown(pages: Pages, own_store: StateStore) -> None:
    """A job that claims the store and fails leaves nothing else."""
    assert "none known" in get(pages(own_store))[1]
    StateStore.open(own_store.url).parts.fence.claim()
    body = get(pages(own_store))[1]
    assert "no commit since a new claim" in body
    assert "generation 2" in body


def test_a_damaged_checkpoint_is_shown_as_damaged(pages: Pages, own_store: StateStore) -> None:
    (manifest,) = Path(own_store.url).rglob("*2.json")
    manifest.write_text("{}")
    status, body, _ = get(pages(own_store))
    assert status == 200
    assert '<dd class="bad">checkpoint 2 is damaged</dd>' in body
    assert get(pages(own_store), "/checkpoint/2")[0] == 500


def test_dropped_state_is_shown(pages: Pages, own_store: StateStore) -> None:
    record = LeftOutState(
        operator="kinds", state=None, reason="it <cannot> be read", command="flink import"
    )
    with own_store.snapshot(parallelism=2) as checkpoint:
        checkpoint.collected.record(left_out=[record])
        checkpoint.carry_rest()
    address = pages(own_store)
    assert "lacks 1 part of its source" in get(address)[1]
    shown = get(address, f"/checkpoint/{checkpoint.id}")[1]
    assert '<dd id="left-out">kinds (it &lt;cannot&gt; be read)</dd>' in shown
    assert 'id="left-out"' not in get(address, "/checkpoint/1")[1]


def test_pages_show_the_missing_parts_of_a_checkpoint(pages: Pages, own_store: StateStore) -> None:
    state = own_store.checkpoint().manifest.keyed[0].state
    lost = LeftOutState(
        operator=state.uid, state=state.name, reason="damaged", command="salvage", first=0, last=1
    )
    with own_store.snapshot(parallelism=2) as checkpoint:
        checkpoint.collected.record(left_out=[lost])
        checkpoint.carry_rest()
    new = f"/checkpoint/{checkpoint.id}"
    asked = urlencode({"operator": state.uid, "state": state.name})
    address = pages(own_store)
    for path in (
        f"{new}/key?key=nobody",
        f"{new}/rescale",
        f"{new}/state?{asked}",
        f"/compare?a=1&b={checkpoint.id}",
    ):
        body = get(address, path)[1]
        assert body.count('<p class="left-out">') == 1, path
        assert f"Left out: {lost.label} (damaged)" in body
        old = path.replace(new, "/checkpoint/1").replace(f"b={checkpoint.id}", "b=1")
        assert 'class="left-out"' not in get(address, old)[1], old
    assert f"Left out: {lost.label} (damaged)" in ask(address, "SELECT 1 AS n")[1]


def test_values_of_the_store_are_escaped(pages: Pages, store: StateStore) -> None:
    address = pages(store)
    for path in ("/", "/checkpoint/3", "/checkpoint/3/rescale", "/checkpoint/3/sql"):
        assert SCRIPT not in get(address, path)[1]


def test_a_page_reads_only_the_manifests_that_it_shows(own_store: StateStore) -> None:
    for _ in range(4, SHOWN + 3):
        with own_store.snapshot(parallelism=3) as checkpoint:
            checkpoint.carry_rest()
    first = timeline(own_store)
    assert [fact.checkpoint_id for fact in first.facts["lines"]] == [*range(SHOWN + 2, 2, -1)]
    older = timeline(own_store, before=first.facts["older"])
    assert [fact.checkpoint_id for fact in older.facts["lines"]] == [2, 1]


def test_other_machines_need_a_token(store: StateStore) -> None:
    with pytest.raises(InvalidArgumentError, match="pass a token"):
        serve(store, "0.0.0.0", 0, token=None, limits=LIMITS, on_listening=print)
    assert [is_local(one) for one in ("::1", "127.0.0.2", "localhost", "10.0.0.1", "host")] == [
        *(True, True, True, False, False)
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/trends?parallelism=999", "restore at 128 or less</p>"),
        ("/trends?parallelism=x", "parallelism must be a number, not"),
        ("/trends?last=0", "newest checkpoints must be above 0, not 0"),
        ("/trends?rate=0", "MB/s of a subtask must be above 0, not 0"),
        ("/checkpoint/latest/rescale?parallelism=999", "restore at 128 or less"),
        ("/checkpoint/latest/rescale?ms=-1", "ms per request must be at least 0, not -1"),
        ("/checkpoint/latest/rescale?ms=x", "ms per request must be a number, not"),
        ("/compare?a=1&b=99", "no checkpoint 99 in"),
    ],
)
def test_an_error_names_fields_and_not_options(
    pages: Pages, store: StateStore, path: str, message: str
) -> None:
    status, body, _ = get(pages(store), path)
    assert status in (400, 404)
    (text,) = re.findall('<p class="bad" role="alert">.*</p>', body)
    assert message in text
    assert " --" not in text
    assert "_" not in text.replace(store.url, "")


def test_the_words_of_errors_are_labels_of_the_forms() -> None:
    templates = (ROOT / "statestore" / "ui" / "templates").glob("*.html")
    forms = "".join(path.read_text() for path in templates)
    for argument in ("last", "size_bytes", "restore_time", "rate", "request_ms"):
        assert f"<label>{word_field(argument, None)} <input" in forms
    assert word_field("max_parallelism", 16) is None


def test_a_url_without_a_store_is_an_error(tmp_path: Path) -> None:
    def fail(address: str) -> None:
        raise AssertionError(address)  # otherwise it would serve

    missing = StateStore.open(str(tmp_path / "missing"))
    with pytest.raises(StoreNotFoundError, match=f"no store at {tmp_path}/missing"):
        serve(missing, "127.0.0.1", 0, token=None, limits=LIMITS, on_listening=fail)


def test_a_port_in_use_is_an_error(pages: Pages, store: StateStore) -> None:
    port = urlsplit(pages(store)).port
    assert port is not None
    with pytest.raises(InvalidArgumentError, match=f"port {port} of 127.0.0.1"):
        serve(store, "127.0.0.1", port, token=None, limits=LIMITS, on_listening=print)


def test_pages_show_a_checkpoint_that_only_a_savepoint_keeps(
    pages: Pages, own_store: StateStore
) -> None:
    """Its links have its number, and lead to its pages."""
    own_store.parts.catalog().expire(1, b"tombstone")
    assert own_store.checkpoints() == (2, 3)
    address = pages(own_store)
    state = urlencode({"operator": "totals", "state": "total"})
    key = urlencode({"key": "u1"})
    for which in ("before", "1"):
        for page in ("", f"/state?{state}", f"/rows?{state}", f"/hot?{state}", "/rescale", "/sql"):
            assert get(address, f"/checkpoint/{which}{page}")[0] == 200, (which, page)
        assert get(address, f"/checkpoint/{which}/key?{key}")[0] == 200
        assert get(address, f"/checkpoint/{which}/history?{key}&{state}")[0] == 200
    page = get(address, "/checkpoint/before/sql")[1]
    assert 'action="/checkpoint/1/sql"' in page
    token = re.findall(r'name="form_token" value="([^"]+)"', page)[0]
    form = urlencode({"sql": "SELECT max(total) + 4000 AS most FROM total", "form_token": token})
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("POST", "/checkpoint/1/sql", form)
    answer = connection.getresponse()
    assert (answer.status, ">4101</td>" in answer.read().decode()) == (200, True)
    connection.close()


def test_pages_show_who_made_a_checkpoint_and_what_was_deleted(
    pages: Pages, own_store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor is text, whatever it contains."""
    monkeypatch.setenv("STATESTORE_ACTOR", "<b>ann</b>")
    before = own_store.checkpoints()
    address = pages(own_store)
    assert "Last deletions" not in get(address)[1]
    with own_store.snapshot(parallelism=1, batch=("totals", 7)) as checkpoint:
        checkpoint.carry_rest()
    facts = get(address, f"/checkpoint/{checkpoint.id}")[1]
    assert f"job totals, after checkpoint {before[-1]}" in facts
    assert "&lt;b&gt;ann&lt;/b&gt;, " in facts
    own_store.maintenance.expire(retain=1)
    home = get(address)[1]
    assert "Last deletions" in home
    assert "<td>&lt;b&gt;ann&lt;/b&gt;</td>" in home
    assert "<td>retain 1</td>" in home
    assert "<b>ann" not in home + facts
