"""A broken document says where it is broken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from statestore.errors import FormatVersionError, MalformedManifestError
from statestore.format.documents import Node, document_bytes, parse_document, sealed


def parse(document: Any) -> Node:
    return parse_document(document_bytes(document), name="doc", form="f", newest=3)


def node(value: Any) -> Node:
    return Node({"a": {"b": [value]}}, "$", "doc")


def test_getters_give_what_they_promise() -> None:
    """Each one type."""
    root = parse(
        {
            "format": "f",
            "format_version": 3,
            "text": "é",
            "number": 0,
            "texts": ["a"],
            "numbers": [0, 7],
            "nothing": None,
        }
    )
    assert root.at("text").text() == "é"
    assert root.at("number").number() == 0
    assert root.at("texts").texts() == ("a",)
    assert root.at("numbers").numbers() == (0, 7)
    assert [item.text() for item in root.at("texts").items()] == ["a"]
    assert root.maybe("nothing") is root.maybe("absent") is None
    assert root.object()["number"] == 0


WRONG: dict[str, list[Any]] = {
    "text": [1, None, [], {}],
    "number": ["1", -1, 1.0, True, None, [], {}],
    "texts": ["a", [1], [None], {}, ["a", 1]],
    "numbers": [1, [-1], [True], [1.0], ["1"], [0, None]],
    "object": [[], "a", None],
    "items": [{}, "a", None],
}


@pytest.mark.parametrize(
    ("getter", "value"), [(getter, value) for getter, values in WRONG.items() for value in values]
)
def test_another_type_is_refused_with_its_place(getter: str, value: Any) -> None:
    """A path into the document."""
    place = next(node(value).at("a").at("b").items())
    with pytest.raises(MalformedManifestError, match=r"^doc at \$\.a\.b\[0\]: expected"):
        list(getattr(place, getter)() or ())


def test_a_missing_member_is_named() -> None:
    """With the place that lacks it."""
    with pytest.raises(MalformedManifestError, match=r"doc at \$\.a: 'c' is missing"):
        node(1).at("a").at("c")
    with pytest.raises(MalformedManifestError, match=r"doc at \$\.a\.b: expected an object"):
        node(1).at("a").at("b").at("c")


@pytest.mark.parametrize("raw", [b"", b"{", b"nonsense", b"\xff", b"\x00", b"[" * 10**5, b"1 2"])
def test_what_is_no_json_is_malformed(raw: bytes) -> None:
    """Whatever the parser thinks of it; without its checksum it is not even given to the parser."""
    with pytest.raises(MalformedManifestError, match="doc is not valid JSON"):
        parse_document(sealed(raw), name="doc", form="f", newest=1)
    with pytest.raises(MalformedManifestError, match="doc is damaged"):
        parse_document(raw, name="doc", form="f", newest=1)


def test_every_other_byte_is_damage() -> None:
    """I4: each byte of a document, replaced by each other value, and one more or one less."""
    raw = document_bytes({"format": "f", "format_version": 1})
    for at in range(len(raw)):
        for value in set(range(256)) - {raw[at]}:
            changed = raw[:at] + bytes([value]) + raw[at + 1 :]
            with pytest.raises(MalformedManifestError, match="doc is damaged"):
                parse_document(changed, name="doc", form="f", newest=1)
    for changed in (raw[:-1], raw[1:], raw + b"\n", b" " + raw, raw.replace(b",", b", ")):
        with pytest.raises(MalformedManifestError, match="doc is damaged"):
            parse_document(changed, name="doc", form="f", newest=1)


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
