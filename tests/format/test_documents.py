"""A broken document says where it is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from statestore.errors import FormatVersionError, MalformedManifestError, ParallelismError
from statestore.format.documents import (
    CheckpointId,
    Count,
    Moment,
    converted,
    document_bytes,
    parse_document,
    placed,
    sealed,
    unfit,
    within,
)


def parse(document: Any) -> dict[str, Any]:
    return parse_document(document_bytes(document), dict[str, Any], name="doc", form="f", newest=3)


@pytest.mark.parametrize(
    ("kind", "greatest"),
    [(Count, 2**63 - 1), (Moment, 253_402_300_799_999), (CheckpointId, 10**10 - 1)],
)
def test_a_number_has_its_bounds_and_is_written_as_one(kind: Any, greatest: int) -> None:
    """No fraction, truth or text is a number, not even one that equals one."""
    assert converted([0, greatest], list[kind], "doc") == [0, greatest]
    wrongs: list[Any] = [
        -1,
        greatest + 1,
        2**70,
        10**400,
        1.0,
        True,
        "1",
        None,
        [],
        {},
        float("nan"),
    ]
    for wrong in wrongs:
        with pytest.raises(MalformedManifestError, match=r"^doc at \$\.a\.b\[0\]: Expected `int`"):
            converted([wrong], list[kind], "doc", ".a.b")


def test_what_a_reader_refuses_has_its_place() -> None:
    """Whoever raises it, and however deep."""
    for error, message in (
        (unfit(".rows", "too many"), r"doc at \$\.a\[0\]\.rows: too many"),
        (ValueError("of value"), r"doc at \$\.a\[0\]: of value"),
        (ParallelismError("too few"), r"doc at \$\.a\[0\]: too few"),
    ):
        with (
            pytest.raises(MalformedManifestError, match=f"^{message}$"),
            placed("doc", ".a"),
            within("[0]"),
        ):
            raise error


def test_of_a_member_that_is_there_twice_the_last_counts() -> None:
    """As for other readers of JSON."""
    raw = sealed(b'{"format":"f","format_version":1,"a":"x","a":2')
    assert parse_document(raw, dict[str, Any], name="doc", form="f", newest=1)["a"] == 2


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"nonsense", b"\xff", b"\x00", b"[" * 10**5, b'{"a":' * 10**5, b"1 2"]
)
def test_what_is_no_json_is_malformed(raw: bytes) -> None:
    """Whatever the parser thinks of it; without its checksum it is not even given to the parser."""
    said = r"doc (is not valid JSON|at \$: Expected `object`, got `(array|int)`)"
    with pytest.raises(MalformedManifestError, match=said):
        parse_document(sealed(raw), dict, name="doc", form="f", newest=1)
    with pytest.raises(MalformedManifestError, match="doc is damaged"):
        parse_document(raw, dict, name="doc", form="f", newest=1)


def test_every_other_byte_is_damage() -> None:
    """I4: each byte of a document, replaced by each other value, and one more or one less."""
    raw = document_bytes({"format": "f", "format_version": 1})
    for at in range(len(raw)):
        for value in set(range(256)) - {raw[at]}:
            changed = raw[:at] + bytes([value]) + raw[at + 1 :]
            with pytest.raises(MalformedManifestError, match="doc is damaged"):
                parse_document(changed, dict, name="doc", form="f", newest=1)
    for changed in (raw[:-1], raw[1:], raw + b"\n", b" " + raw, raw.replace(b",", b", ")):
        with pytest.raises(MalformedManifestError, match="doc is damaged"):
            parse_document(changed, dict, name="doc", form="f", newest=1)


def test_a_document_is_json_for_any_reader() -> None:
    """Its checksum is a member like others, and the last one."""
    read = json.loads(document_bytes({"format": "é", "files": {"sha256": ["x"]}}))
    assert list(read) == ["format", "files", "sha256"]


def test_another_form_is_refused() -> None:
    """A manifest is no store file."""
    with pytest.raises(MalformedManifestError, match=r"\$\.format: expected 'f', found 'g'"):
        parse({"format": "g", "format_version": 1})


def test_a_newer_version_asks_for_an_upgrade_before_anything_else_is_read() -> None:
    """It may have changed everything."""
    with pytest.raises(FormatVersionError, match="version 4; this release reads up to 3"):
        parse({"format": "f", "format_version": 4})


FIRST_USES = """
import sys, threading, types
from statestore.format.documents import as_declared

SOURCE = '''
from __future__ import annotations
from msgspec import Struct

class Part(Struct):
    name: str
    sizes: dict[str, int]

class Whole(Struct):
    first: Part
    parts: list[Part]
    other: Part | None
'''
VALUE = {"first": {"name": "a", "sizes": {}}, "parts": [], "other": None}


def convert(kind, together, found):
    together.wait()
    found.append(as_declared(VALUE, kind).first.name)


sys.setswitchinterval(1e-6)
for number in range(200):
    module = sys.modules[f"declared{number}"] = types.ModuleType(f"declared{number}")
    exec(SOURCE, module.__dict__)
    together, found = threading.Barrier(8), []
    threads = [
        threading.Thread(target=convert, args=(module.Whole, together, found)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["a"] * 8, found
"""


def test_threads_may_read_documents_of_a_kind_for_the_first_time_together() -> None:
    """msgspec alone lets the process die: a segmentation fault, in one of some hundred runs."""
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
