"""What subtasks answer with comes back from its bytes, or is refused with the place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import FormatVersionError, MalformedManifestError
from statestore.format.documents import document_bytes
from statestore.snapshot.subtasks import Acknowledgement, Attempted
from tests.support.key_values import manifests

ATTEMPT = Attempted("store", 7, "token")


@given(manifests(), st.integers(0, 2**15))
def test_an_acknowledgement_comes_back_from_its_bytes(manifest: Any, subtask: int) -> None:
    """Of every keyed state that there can be."""
    for entry in manifest.keyed:
        given_one = Acknowledgement(ATTEMPT, subtask, entry)
        assert Acknowledgement.from_json(given_one.to_json()) == given_one
        assert given_one.rows == entry.rows


@given(manifests())
def test_what_is_wrong_is_named_with_its_place(manifest: Any) -> None:
    """Members that are missing, files that do not add up, a form that is newer."""
    for entry in manifest.keyed:
        document = json.loads(Acknowledgement(ATTEMPT, 1, entry).to_json())
        del document["sha256"]
        for change, error, place in (
            ({"token": None}, MalformedManifestError, r"\$\.token"),
            ({"subtask": -1}, MalformedManifestError, r"\$\.subtask"),
            ({"format": "other"}, MalformedManifestError, r"\$\.format"),
            (
                {"keyed": document["keyed"] | {"rows": entry.rows + 1}},
                MalformedManifestError,
                r"\$\.keyed\.rows",
            ),
            ({"format_version": 2}, FormatVersionError, "format version 2"),
        ):
            with pytest.raises(error, match=place):
                Acknowledgement.from_json(document_bytes(document | change))
