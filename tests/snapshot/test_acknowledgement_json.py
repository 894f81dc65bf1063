"""Acknowledgements as JSON survive a round trip, or are refused with the error's position."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import FormatVersionError, MalformedManifestError
from statestore.format.documents import document_bytes
from statestore.snapshot.subtask_writer import Acknowledgement, AttemptId
from tests.support.key_values import manifests

ATTEMPT = AttemptId("store", 7, "token")


@pytest.mark.slow
@given(manifests(), st.integers(0, 2**15))
def test_an_acknowledgement_survives_a_round_trip(manifest: Any, subtask: int) -> None:
    """For every possible keyed state."""
    for entry in manifest.keyed:
        given_one = Acknowledgement(ATTEMPT, subtask, entry)
        assert Acknowledgement.from_json(given_one.to_json()) == given_one
        assert given_one.rows == entry.rows


@given(manifests())
def test_an_error_is_named_with_its_position(manifest: Any) -> None:
    """Missing members, inconsistent files, and a newer format."""
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
