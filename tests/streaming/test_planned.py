from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from statestore.errors import InvalidArgumentError
from statestore.storage import Storage, open_storage
from statestore.streaming.planned import planned
from tests.streaming.world import World

pytestmark = pytest.mark.spark


def written(folder: Path, **content: str) -> Storage:
    """Return a checkpoint location with these files; ``_`` in a name stands for ``/``."""
    for name, text in content.items():
        path = folder / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return open_storage(str(folder))


def entry(number: int, file: str) -> str:
    return "\n" + json.dumps({"path": f"file:///in/{file}", "timestamp": 1, "batchId": number})


def offsets(*ends: str) -> str:
    return "\n".join(["v1", '{"batchTimestampMs":5}', *ends])


def test_new_files_of_a_source_are_known(tmp_path: Path) -> None:
    """They come from the source's own log or from the end of a log with all files, in any order."""
    log = "v1" + "".join(entry(n // 1000, f"f{n}") for n in range(10_000))
    location = written(
        tmp_path,
        metadata='{"id":"q"}',
        offsets_8=offsets("-", '{"logOffset":8}'),
        offsets_9=offsets('{"t":{"0":3}}', '{"logOffset":9}'),
        sources_1_8="v1" + entry(8, "b") + entry(8, "a"),
        **{"sources_1_9.compact": log},
    )
    batch = planned(location, 9)
    assert (batch.query, batch.number, batch.planned_at_ms) == ("q", 9, 5)
    assert batch.ends == ('{"t":{"0":3}}', '{"logOffset":9}')
    assert batch.before is not None
    assert (batch.before.ends, batch.before.before) == (("-", '{"logOffset":8}'), None)
    own = "v1" + "".join(entry(9, f"f{n}") for n in reversed(range(9000, 10_000)))
    (tmp_path / "sources/1/9.compact").unlink()
    assert planned(written(tmp_path, sources_1_9=own), 9) == batch
    assert planned(written(tmp_path, sources_1_9=own + entry(9, "more")), 9).files != batch.files


@pytest.mark.parametrize(
    "lost",
    [
        {"metadata": ""},
        {"offsets_1": ""},
        {"offsets_1": "v1"},
        {"offsets_1": "v1\n{"},
        {"offsets_0": None},
        {"sources_0_1": None},
        {"sources_0_1": "v1"},
        {"sources_0_1": "v1" + entry(1, "a")[:-3]},
    ],
)
def test_missing_files_of_a_location_are_named(tmp_path: Path, lost: dict[str, str | None]) -> None:
    whole = {
        "metadata": '{"id":"q"}',
        "offsets_0": offsets('{"logOffset":-1}'),
        "offsets_1": offsets('{"logOffset":1}'),
        "sources_0_1": "v1" + entry(1, "a"),
    }
    assert planned(written(tmp_path, **whole), 1).files
    location = written(tmp_path, **{k: v for k, v in lost.items() if v is not None})
    ((name, text),) = lost.items()
    if text is None:
        (tmp_path / name.replace("_", "/")).unlink()
    with pytest.raises(InvalidArgumentError, match=name.replace("_", "/")):
        planned(location, 1)


def test_offsets_of_an_unknown_version_are_refused(world: World) -> None:
    world.add()
    world.run(world.query())
    shutil.rmtree(world.folder / "store")
    location = world.folder / "progress"
    for name in ("commits/0", "commits/.0.crc", "offsets/.0.crc"):
        (location / name).unlink()
    offsets = location / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace("v1", "v9", 1))
    with pytest.raises(InvalidArgumentError, match="v9"):
        planned(open_storage(str(location)), 0)


def named(*ends: str) -> str:
    return offsets(*ends).replace("v1", "v2", 1)


def test_sources_are_identified_by_their_names(tmp_path: Path) -> None:
    """Numbers are sorted as numbers, also above nine; ticks have no position."""
    many = [f'{n}:{{"t":{{"0":{n}}}}}' for n in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)]
    location = written(
        tmp_path,
        metadata='{"id":"q"}',
        offsets_0=named("b:-", "statestore_ticks:3", 'a:{"logOffset":0}'),
        offsets_1=named('b:{"t":{"0":3}}', "statestore_ticks:4", 'a:{"logOffset":0}'),
        sources_a_0="v1" + entry(0, "f"),
        offsets_2=named(*many),
    )
    batch = planned(location, 1, ticks=True)
    assert batch.names == ("b", "a")
    assert batch.ends == ('{"t":{"0":3}}', '{"logOffset":0}')
    assert [at for at, _ in batch.files] == [1]
    assert batch.before is not None
    assert (batch.before.names, batch.before.ends) == (("b", "a"), ("-", '{"logOffset":0}'))
    numbered = planned(location, 2, ticks=True)
    assert numbered.names == ()
    assert [json.loads(end)["t"]["0"] for end in numbered.ends] == [*range(10)]


def test_positions_get_the_names_in_the_plan(tmp_path: Path) -> None:
    """Version 1 has no names, and a plan with other sources is refused."""
    location = written(
        tmp_path,
        metadata='{"id":"q"}',
        offsets_0=offsets('{"logOffset":0}', "-", "7"),
        sources_a_0="v1" + entry(0, "f"),
    )
    batch = planned(location, 0, ticks=True, folders=("a", "b", "statestore_ticks"))
    assert (batch.names, [at for at, _ in batch.files]) == (("a", "b"), [0])
    with pytest.raises(InvalidArgumentError, match="3 sources, but the query has 2"):
        planned(location, 0, folders=("a", "b"))
    with pytest.raises(InvalidArgumentError, match="sources/b/0"):
        planned(location, 0, folders=("b", "a", "c"))


def test_a_source_without_its_end_is_refused(tmp_path: Path) -> None:
    location = written(tmp_path, metadata='{"id":"q"}', offsets_0=named("a:-", "orders"))
    with pytest.raises(InvalidArgumentError, match="offsets/0"):
        planned(location, 0)
