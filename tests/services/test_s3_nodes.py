"""SeaweedFS as several nodes: processes commit while each node is killed and restarted.

The bucket's volumes have two copies, and all gateways share one filer.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.storage import open_storage
from tests.linearizability.judge import violations
from tests.servers.seaweedfs_cluster import seaweedfs_cluster
from tests.services.committing import (
    attempt_of,
    committed_rows,
    committing,
    history_of,
    settled,
)
from tests.services.racing import race

pytestmark = [pytest.mark.services, pytest.mark.long]

PREFIX = "nodes"
WRITERS, LANES, RACES = 4, 32, 256
DOWN_SECONDS, UP_SECONDS = (0.3, 3.0), (0.5, 4.0)


def test_of_writers_at_different_gateways_one_wins(tmp_path: Path) -> None:
    """I4: each name is put through both gateways at the same time."""
    with seaweedfs_cluster(tmp_path) as cluster:
        first, *others = (
            open_storage(gateway.url(PREFIX), gateway.options) for gateway in cluster.gateways
        )
        names = [f"races/{number:04}" for number in range(RACES)]
        won, problems = race(first, WRITERS, names, lanes=LANES, others=others)
    assert problems == []
    assert sorted(name for mine in won for name in mine) == names


@pytest.mark.parametrize("seed", [1, 2])
def test_no_commit_is_lost_while_nodes_are_killed(tmp_path: Path, seed: int) -> None:
    """I4, I5, I6, I10: each node is killed once with SIGKILL while two processes commit.

    Each error is a StorageError or a conflict. Each reported checkpoint has its writer's rows, and
    the history of all commits and lists is linearizable.
    """
    dice = random.Random(seed)
    with seaweedfs_cluster(tmp_path) as cluster:
        places = [(gateway.url(PREFIX), gateway.options) for gateway in cluster.gateways]
        with committing(places) as reports:
            for node in dice.sample([*cluster.nodes.values()], len(cluster.nodes)):
                time.sleep(dice.uniform(*UP_SECONDS))
                node.kill()
                time.sleep(dice.uniform(*DOWN_SECONDS))
                node.start()
            time.sleep(UP_SECONDS[1])
        cluster.wait()
        url, options = places[0]
        store = StateStore.open(url, table_format="parquet", storage_options=options)
        assert [problem for report in reports for problem in report.problems] == []
        assert len(reports) == len(places)
        attempts = settled(reports, store)
        committed = {
            each.id: (each.writer, each.number) for each in attempts if each.outcome == "done"
        }
        visible = {found: attempt_of(committed_rows(store, found)) for found in store.checkpoints()}
        assert committed == visible
        assert len(committed) > len(cluster.nodes)
        assert violations([history_of(reports, store)]) == [[]]
