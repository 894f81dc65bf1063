"""The names of MirrorMaker's topics, as its two replication policies make them."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.sources.mirror_policies import MirrorFlow


def flow(**others: Any) -> MirrorFlow:
    return MirrorFlow(**{"source": "A", "target": "B", **others})


@pytest.mark.parametrize(
    ("settings", "topic", "expected"),
    [
        ({}, "orders", "A.orders"),
        ({}, "A.orders", "A.A.orders"),
        ({}, "C.orders", "A.C.orders"),
        ({}, "B.orders", "orders"),  # it came from the target
        ({}, "B.", "A.B."),
        ({}, "Borders", "A.Borders"),
        ({"separator": "__"}, "orders", "A__orders"),
        ({"separator": "__"}, "B__orders", "orders"),
        ({"separator": "__"}, "B.orders", "A__B.orders"),
        ({"policy": "identity"}, "orders", "orders"),
        ({"policy": "identity"}, "B.orders", "B.orders"),
        ({"policy": "identity"}, "heartbeats", "A.heartbeats"),
        ({"policy": "identity", "separator": "-"}, "C.heartbeats", "A-C.heartbeats"),
    ],
)
def test_the_name_at_the_target(settings: dict[str, Any], topic: str, expected: str) -> None:
    assert flow(**settings).target_topic(topic) == expected


@pytest.mark.parametrize(
    ("settings", "syncs", "checkpoints"),
    [
        ({}, "mm2-offset-syncs.B.internal", "A.checkpoints.internal"),
        ({"syncs_on": "target"}, "mm2-offset-syncs.A.internal", "A.checkpoints.internal"),
        ({"separator": "_"}, "mm2-offset-syncs_B_internal", "A_checkpoints_internal"),
        (
            {"separator": "_", "internal_separator": False},
            "mm2-offset-syncs.B.internal",
            "A.checkpoints.internal",
        ),
        ({"policy": "identity"}, "mm2-offset-syncs.B.internal", "A.checkpoints.internal"),
    ],
)
def test_the_internal_topics(settings: dict[str, Any], syncs: str, checkpoints: str) -> None:
    assert (flow(**settings).syncs_topic, flow(**settings).checkpoints_topic) == (
        syncs,
        checkpoints,
    )


def test_the_aliases_with_offset_syncs() -> None:
    topics = [
        *("mm2-offset-syncs.B.internal", "mm2-offset-syncs.a.b.internal"),
        *("mm2-offset-syncs.internal", "mm2-offset-syncs..internal", "orders", "mm2-offset-syncs"),
    ]
    assert flow().aliases_of(topics) == ["B", "a.b"]
    assert flow(separator="_").aliases_of(topics) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": ""}, "the source of a replication flow is empty"),
        ({"target": ""}, "the target of a replication flow is empty"),
        ({"separator": ""}, "the separator of a replication flow is empty"),
        ({"target": "A"}, "have the same alias 'A'"),
        ({"policy": "none"}, "policy must be one of default, identity, not 'none'"),
        ({"syncs_on": "both"}, "syncs_on must be one of source, target, not 'both'"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        flow(**settings)
