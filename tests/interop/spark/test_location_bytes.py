"""A checkpoint location with files that were crafted to take a long time: a typed error, soon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statestore.errors import DamagedFileError
from statestore.interop.spark.location import CheckpointLocation
from statestore.storage import open_storage

DEEP = "[" * 100_000 + "]" * 100_000
HALF = '"\\ud800"'


def location(folder: Path, **files: str) -> CheckpointLocation:
    """Write a location of one operator whose state has two partitions, and other ``files``."""
    operator = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
    }
    written: dict[str, Any] = {
        "metadata": '{"id":"a"}',
        "offsets/0": 'v1\n{"conf":{}}\n{}',
        "commits/0": "v1\n{}",
        "state/0/_metadata/metadata": f"v1\n{json.dumps(operator)}",
        "state/0/0/1.delta": "",
        "state/0/1/1.delta": "",
        **files,
    }
    for name, content in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return CheckpointLocation(open_storage(str(folder)))


def read_all(found: CheckpointLocation) -> None:
    assert found.query_id
    batch = found.batch()
    assert found.plan(batch).ends
    assert found.commit(batch).version
    assert found.operators(batch)[0].stores[0].partitions == 2


def test_a_location_is_read(tmp_path: Path) -> None:
    read_all(location(tmp_path))


PARTITIONS = [str(10**12), str(2**31 - 1), "5", "0", "-1", "9" * 5_000]


@pytest.mark.parametrize("partitions", PARTITIONS, ids=lambda text: text[:15])
def test_more_partitions_than_files_are_refused(tmp_path: Path, partitions: str) -> None:
    store = f'{{"storeName":"default","numPartitions":{partitions}}}'
    operator = '{"operatorId":0,"operatorName":"dedupe"}'
    text = f'v1\n{{"operatorInfo":{operator},"stateStoreInfo":[{store}]}}'
    with pytest.raises(DamagedFileError, match=r"state/0/_metadata/metadata is (invalid|not in)"):
        read_all(location(tmp_path, **{"state/0/_metadata/metadata": text}))


def test_an_operator_may_have_all_its_rows_in_partition_0(tmp_path: Path) -> None:
    """Spark writes the query's number of partitions for an aggregation without a key, too."""
    store = '{"storeName":"default","numPartitions":200}'
    operator = '{"operatorId":0,"operatorName":"stateStoreSave"}'
    text = f'v1\n{{"operatorInfo":{operator},"stateStoreInfo":[{store}]}}'
    found = location(tmp_path, **{"state/0/_metadata/metadata": text})
    (tmp_path / "state/0/1/1.delta").unlink()
    (tmp_path / "state/0/1").rmdir()
    assert found.operators(0)[0].stores[0].partitions == 200


IDS = ["deep", "half", "deep member", "half member"]


@pytest.mark.parametrize("json_text", [DEEP, HALF, f'{{"id":{DEEP}}}', f'{{"id":{HALF}}}'], ids=IDS)
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("metadata", ""),
        ("offsets/0", "v1\n"),
        ("offsets/0", 'v1\n{"conf":{}}\n'),
        ("commits/0", "v1\n"),
        ("state/0/_metadata/metadata", "v1\n"),
    ],
)
def test_nested_json_is_limited(tmp_path: Path, name: str, head: str, json_text: str) -> None:
    with pytest.raises(DamagedFileError, match=f"{name} is not in Spark's format"):
        read_all(location(tmp_path, **{name: head + json_text}))
