"""Write golden snapshots of real Flink and the rows of Flink's own restore.

    python -m tests.golden.make_flink tests/golden/flink

Existing goldens are never rewritten.

``tests/golden/flink/README.md`` describes their content.
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import sys
import tarfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.servers.flink import VERSIONS, Flink, flink_with_kafka
from tests.servers.kafka import kafka_broker
from tests.services.kafka_topics import Topics

# Flink's output contains the paths of files, so the folder is fixed.
FOLDER = Path("/tmp/golden/flink")
EVENTS = 250
# Without a checkpoint folder the metadata contains all state.
FILES = {
    "execution.checkpointing.data-inline-threshold": "0b",
    "execution.checkpointing.dir": f"file://{FOLDER}/checkpoints",
}
INCREMENTAL = {
    "execution.checkpointing.data-inline-threshold": "0b",
    "execution.checkpointing.incremental": "true",
}
ROCKSDB = {"state.backend.type": "rocksdb"}
HEAP = {"state.backend.type": "hashmap"}


@dataclass(frozen=True)
class Case:
    """A snapshot to write: its name, its kind, and its settings."""

    name: str
    what: str
    settings: dict[str, str]
    format: str = "CANONICAL"
    parallelism: int = 2
    step: dict[str, str] = field(default_factory=dict)
    after: str | None = None
    has_results: bool = False


CASES = (
    Case("heap_canonical", "savepoint", HEAP),
    Case("heap_native", "savepoint", HEAP | FILES, "NATIVE"),
    Case("rocksdb_canonical", "savepoint", ROCKSDB | FILES),
    Case("rocksdb_native", "savepoint", ROCKSDB | FILES, "NATIVE"),
    Case(
        "rocksdb_incremental",
        "checkpoint",
        ROCKSDB | INCREMENTAL,
        step={"first": "200"},
    ),
    Case(
        "heap_snappy", "savepoint", HEAP | {"execution.checkpointing.snapshot-compression": "true"}
    ),
    Case(
        "rescaled",
        "savepoint",
        ROCKSDB,
        parallelism=3,
        step={"events": str(EVENTS + 100)},
        after="heap_canonical",
    ),
    Case("sql", "savepoint", ROCKSDB, has_results=True),
    Case("sql_native", "savepoint", HEAP | FILES, "NATIVE", has_results=True),
)


def main() -> None:
    """Write the missing snapshots, and an index of all."""
    target = Path(sys.argv[1])
    shutil.rmtree(FOLDER, ignore_errors=True)
    index = target / "snapshots.json"
    known = json.loads(index.read_text()) if index.exists() else {}
    for version in VERSIONS:
        known |= _write(target, version)
        index.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    if not (target / "2.3_kafka.tar.xz").exists():
        known["2.3_kafka"] = _kafka(target)
        index.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    if not (target / "2.3_tables.tar.xz").exists():
        _tables(target / "2.3_tables.tar.xz")
    if not (target / "2.3_indexes.tar.xz").exists():
        Flink(VERSIONS[0]).java("golden.IndexedTables", [str(FOLDER / "indexes")])
        _pack(FOLDER / "indexes", target / "2.3_indexes.tar.xz")
    serializers = target / "serializers.json.xz"
    if not serializers.exists():
        serializers.write_bytes(_compressed(json.dumps(_serializers("Serializers")).encode()))
    user_types = target / "user_types.json.xz"
    if not user_types.exists():
        user_types.write_bytes(_compressed(json.dumps(_serializers("Rows")).encode()))
    kryo_values = target / "kryo_values.json.xz"
    if not kryo_values.exists():
        kryo_values.write_bytes(_compressed(json.dumps(_kryo_values()).encode()))


def _kafka(target: Path) -> dict[str, object]:
    """Write the savepoint of a job that has read a topic except for one of its partitions."""
    folder = FOLDER / "2.3"
    case = Case("kafka", "savepoint", HEAP, has_results=True)
    with kafka_broker(FOLDER / "broker") as broker:
        topics = Topics(broker.bootstrap)
        topics.make(3, name="orders")
        topics.fill("orders", {0: map(str, range(50)), 1: map(str, range(30))})
        flink = flink_with_kafka()
        words = {"bootstrap": broker.bootstrap, "topic": "orders", "events": "80"}
        (place,) = flink.run([_step(case, folder, {}) | words])
    return _keep(target, flink, case, place, folder)


def _tables(target: Path) -> None:
    """Write the savepoint of queries and joins, after the numbers up to 200."""
    folder = FOLDER / "tables"
    step = {"do": "savepoint", "to": str(folder), "format": "CANONICAL", "events": "200"}
    words = [f"{name}={value}" for name, value in (step | HEAP | {"parallelism": "2"}).items()]
    Flink(VERSIONS[0]).java("golden.Tables", [" ".join(words)])
    (place,) = folder.iterdir()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(place, "savepoint")
    target.write_bytes(_compressed(packed.getvalue()))


def _serializers(program: str) -> dict[str, list[object]]:
    """Return each version's serializer output where it differs from the newest version's."""
    said = [Flink(version).java(f"golden.{program}", ()).splitlines() for version in VERSIONS]
    return {
        version: [json.loads(line) for line in lines if lines is said[0] or line not in said[0]]
        for version, lines in zip(VERSIONS, said, strict=True)
    }


def _kryo_values() -> list[dict[str, str]]:
    """Return values with their class, and the bytes that Kryo of each version writes."""
    said = [Flink(version).java("golden.KryoValues", ()).splitlines() for version in VERSIONS]
    return [
        {"class": json.loads(lines[0])["class"]}
        | {
            version: json.loads(line)["bytes"]
            for version, line in zip(VERSIONS, lines, strict=True)
        }
        for lines in zip(*said, strict=True)
    ]


def _write(target: Path, version: str) -> dict[str, object]:
    """Write the missing snapshots of one version of Flink; return its lines of the index."""
    short = version.rpartition(".")[0]
    folder = FOLDER / short
    folder.mkdir(parents=True)
    flink = Flink(version)
    missing = [one for one in CASES if not (target / f"{short}_{one.name}.tar.xz").exists()]
    before = {one.after for one in missing}
    written: dict[str, str] = {}
    index: dict[str, object] = {}
    for case in (one for one in CASES if one in missing or one.name in before):
        (place,) = flink.run([_step(case, folder, written)])
        written[case.name] = place
        if case in missing:
            index[f"{short}_{case.name}"] = _keep(target, flink, case, place, folder)
    return index


def _keep(target: Path, flink: Flink, case: Case, place: str, folder: Path) -> dict[str, object]:
    """Pack a snapshot and the rows that Flink found in it; return its line of the index."""
    name = f"{folder.name}_{case.name}"
    rows = folder / f"{case.name}.jsonl"
    dump = {"do": "dump", "to": str(rows), "parallelism": str(case.parallelism), "from": place}
    if not case.has_results:
        flink.run([dump | case.settings])
    root = folder / case.name if case.what == "checkpoint" else Path(place)
    _pack(root, target / f"{name}.tar.xz")
    return {
        "case": {k: v for k, v in asdict(case).items() if k != "name"},
        "flink": flink.version,
        "rows": _rows(rows, target, name),
        "snapshot": str(Path(place).relative_to(root)),
        "written_at": str(root),
    }


def _step(case: Case, folder: Path, written: dict[str, str]) -> dict[str, str]:
    (folder / case.name).mkdir()
    step = {"do": case.what, "to": str(folder / case.name), "events": str(EVENTS)}
    step |= {"parallelism": str(case.parallelism), "format": case.format}
    step |= {"results": str(folder / f"{case.name}.jsonl")} if case.has_results else {}
    step |= {} if case.after is None else {"from": written[case.after]}
    return step | case.settings | case.step


def _rows(found: Path, target: Path, name: str) -> str:
    """Store the rows of a restore, once for several restores with equal rows; return the file's
    name.
    """
    text = found.read_bytes()
    for kept in sorted(target.glob("*.jsonl.xz")):
        if lzma.decompress(kept.read_bytes()) == text:
            return kept.name
    (target / f"{name}.jsonl.xz").write_bytes(_compressed(text))
    return f"{name}.jsonl.xz"


def _pack(root: Path, archive: Path) -> None:
    """Pack the files of a folder without timestamps and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(each for each in root.rglob("*") if each.is_file()):
            about = tarfile.TarInfo(str(path.relative_to(root)))
            about.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(about, file)
    archive.write_bytes(_compressed(packed.getvalue()))


def _compressed(data: bytes) -> bytes:
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    main()
