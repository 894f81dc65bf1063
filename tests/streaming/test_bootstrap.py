"""A query starts with state from a table, as if it had processed the whole history."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from tests.streaming.world import World

pytestmark = pytest.mark.spark


@pytest.mark.long_cases("3")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_query_continues_from_a_table(world: World, parallelism: int) -> None:
    """It never sees the events of the table, and has the state of a run over all of them."""
    world.add(files=2)
    rows = [{"user": user, "n": n, "total": total} for user, (n, total) in world.expected.items()]
    for file in (world.folder / "in").iterdir():
        file.unlink()
    made = world.store.bootstrap(
        "totals", "per-user", pa.Table.from_pylist(rows), key="user", max_parallelism=8
    )
    assert (made.new_checkpoint_id, made.rows) == (1, len(rows))
    world.add(files=2)
    with pytest.raises(StreamingQueryException, match="succeeds=True"):
        world.run(world.query(parallelism=parallelism))
    world.run(world.query(parallelism=parallelism, succeeds=True))
    assert world.state() == world.expected
    assert world.store.checkpoints() == (1, 2, 3)
