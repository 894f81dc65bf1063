"""An invalid document causes an error with the position of the defect."""

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
    convert_json,
    document_bytes,
    member_error,
    parse_document,
    prefix_place,
    report_place,
    seal_document,
)


def parse(document: Any) -> dict[str, Any]:
    return parse_document(document_bytes(document), dict[str, Any], name="doc", form="f", newest=3)


@pytest.mark.parametrize(
    ("kind", "greatest"),
    [(Count, 2**63 - 1), (Moment, 253_402_300_799_999), (CheckpointId, 10**10 - 1)],
)
def test_a_number_has_its_bounds_and_is_written_as_a_number(kind: Any, greatest: int) -> None:
    """A fraction, a boolean or a text is refused, even if it equals a number."""
    assert convert_json([0, greatest], list[kind], "doc") == [0, greatest]
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
            convert_json([wrong], list[kind], "doc", ".a.b")


def test_a_refused_value_has_its_position() -> None:
    """This holds for every check and at any depth."""
    for error, message in (
        (member_error(".rows", "too many"), r"doc at \$\.a\[0\]\.rows: too many"),
        (ValueError("of value"), r"doc at \$\.a\[0\]: of value"),
        (ParallelismError("too few"), r"doc at \$\.a\[0\]: too few"),
    ):
        with (
            pytest.raises(MalformedManifestError, match=f"^{message}$"),
            report_place("doc", ".a"),
            prefix_place("[0]"),
        ):
            raise error


def test_the_last_of_duplicate_members_wins() -> None:
    """Other readers of JSON do the same."""
    raw = seal_document(b'{"format":"f","format_version":1,"a":"x","a":2')
    assert parse_document(raw, dict[str, Any], name="doc", form="f", newest=1)["a"] == 2


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"nonsense", b"\xff", b"\x00", b"[" * 10**5, b'{"a":' * 10**5, b"1 2"]
)
def test_invalid_json_is_malformed(raw: bytes) -> None:
    """This covers any parser error. A document without its checksum is not parsed at all."""
    said = r"doc (is not valid JSON|at \$: Expected `object`, got `(array|int)`)"
    with pytest.raises(MalformedManifestError, match=said):
        parse_document(seal_document(raw), dict, name="doc", form="f", newest=1)
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


def test_a_document_is_plain_json() -> None:
    """Its checksum is an ordinary member, and the last one."""
    read = json.loads(document_bytes({"format": "é", "files": {"sha256": ["x"]}}))
    assert list(read) == ["format", "files", "sha256"]


def test_another_form_is_refused() -> None:
    """A manifest is not a store file."""
    with pytest.raises(MalformedManifestError, match=r"\$\.format: expected 'f', found 'g'"):
        parse({"format": "g", "format_version": 1})


def test_a_newer_version_asks_for_an_upgrade_before_anything_else_is_read() -> None:
    """A newer version may have changed everything."""
    with pytest.raises(FormatVersionError, match="version 4, but this release supports at most 3"):
        parse({"format": "f", "format_version": 4})


FIRST_USES = """
import sys, threading, types
from statestore.format.documents import convert_value

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
    found.append(convert_value(VALUE, kind).first.name)


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


@pytest.mark.slow
def test_threads_can_concurrently_read_the_first_document_of_a_kind() -> None:
    """msgspec alone crashes the process with a segmentation fault, in one of several
    hundred runs.
    """
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
