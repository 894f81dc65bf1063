"""A number in a document does not determine how much memory its reader uses: small files cost
little.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.format.documents import document_bytes, seal_document
from statestore.jobgraph.graph import JobGraph, Node

# Runs each case in turn, in a process whose memory may grow by this amount.
MEGABYTES = 512
READER = f"""
import io, json, resource, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from statestore.cli.main import main
store, *names = sys.argv[1:]
manifest = Path(store, "checkpoints", "0000000002.json")
whole = manifest.read_bytes()
commands = (["show"], ["list"], ["plan", "--parallelism", "3"], ["show", "--output", "json"])
def run(command):
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return main(["--store", store, *command])
assert [run(command) for command in commands] == [0, 0, 0, 0]
pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + ({MEGABYTES} << 20),) * 2)
for name in names:
    manifest.unlink()
    manifest.write_bytes(Path(name).read_bytes())
    for command in commands:
        try:
            answer = run(command)
        except BaseException as error:
            answer = repr(error)
        if answer not in (0, 2, 10, 12, 13, 14):
            print(json.dumps([name, command, answer]))
"""


def made(path: Path) -> dict[str, Any]:
    """Create a store with every kind of state and a job graph; return its newest manifest."""
    store = StateStore.open(str(path), table_format="parquet", compaction=None)
    graph = JobGraph((Node("u", uid="u", parallelism=2), Node("v", uid="v", parallelism=2)))
    rows = [{"k": str(i), "v": i, "at": i} for i in range(8)]
    options: dict[str, Any] = {"key": "k", "max_parallelism": 4}
    with store.snapshot(parallelism=2, graph=graph) as checkpoint:
        for name, layout in (("part", "partitioned"), ("long", "ranged")):
            checkpoint.write_keyed("u", name, rows, layout=layout, **options)
        for sort in ("split", "union"):
            getattr(checkpoint, f"write_{sort}")("v", sort, [[{"p": 1}], [{"p": 2}]])
        checkpoint.write_broadcast("v", "rule", [{"p": 1}])
    with store.snapshot(parallelism=2, graph=graph) as checkpoint:
        checkpoint.write_changes("u", "long", [{"k": "1", "v": 7, "at": 0}], key="k")
        checkpoint.carry_rest()
    document: dict[str, Any] = json.loads((path / "checkpoints/0000000002.json").read_bytes())
    del document["sha256"]
    document["ranges"] = {"u": [1, 4]}
    return document


def numbers(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every number in a document."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield above
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, part in inner:
        yield from numbers(part, (*above, key))


def at(document: dict[str, Any], place: tuple[Any, ...]) -> tuple[Any, Any]:
    inner: Any = document
    for key in place[:-1]:
        inner = inner[key]
    return inner, place[-1]


def again(document: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(document))
    return copied


def states(document: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    for operator in document["operators"]:
        for state in (*operator["keyed"], *operator["operator"]):
            if state["name"] == name:
                yield state


def one_number(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a document for each number, with its maximum and with a greater value."""
    for place in numbers(document):
        for number in (2**31, 2**63 - 1, 2**63, 10**400):
            changed = again(document)
            inner, key = at(changed, place)
            inner[key] = number
            yield changed


def agreeing(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield documents whose numbers agree with each other, so that no sum check finds them."""
    for many in (2**31, 2**60):
        for name in ("split", "union", "rule", "part"):
            changed = again(document)
            (state,) = states(changed, name)
            if "counts" in state:
                state["counts"][0] += many
            state["rows"] += many
            state["files"]["rows"][0] += many
            yield changed
            state["size_bytes"] += many
            state["files"]["size_bytes"][0] += many
            state["files"]["row_groups"][0] += many
            yield again(changed)


def packed(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield members that decompress to a gigabyte of zeros, from one megabyte and from a doubly
    compressed text.
    """
    pack = zlib.compressobj(9)
    short = b"".join(pack.compress(bytes(2**20)) for _ in range(1024)) + pack.flush()
    for member in ("group_rows", "group_digests"):
        for text in (short, zlib.compress(short, 9)):
            changed = again(document)
            (state,) = states(changed, "long")
            state["changes"][0]["files"][member][0] = base64.b64encode(text).decode()
            yield changed
            state["changes"][0]["files"]["last"][0] = 2**40
            yield again(changed)


def many_operators(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a document with thousands of small operators, each with the largest parallelism."""
    changed = again(document)
    del changed["graph"], changed["ranges"], changed["metrics"]
    (state,) = states(document, "part")
    state["files"] = {member: [] for member in state["files"]}
    state |= {"rows": 0, "size_bytes": 0, "digest": "0" * 16, "max_parallelism": 32_768}
    changed["parallelism"] = 32_768
    changed["operators"] = [
        {
            "uid": f"u{i}",
            "keyed": [state | {"table": state["table"] | {"path": f"operators/u{i}/keyed/part"}}],
            "operator": [],
        }
        for i in range(4_000)
    ]
    yield changed


def nested(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a type that is nested deeper than any real type."""
    for depth in (200, 900, 40_000):
        changed = again(document)
        (state,) = states(changed, "part")
        kind = '{"type":"array","containsNull":true,"elementType":'
        state["schema"]["fields"][1]["type"] = "@"
        text = json.dumps(changed).replace('"@"', kind * depth + '"long"' + "}" * depth)
        yield {"raw": text}


CASES = (one_number, agreeing, packed, many_operators, nested)


@pytest.mark.long_cases("nested", "every third of one_number", "many_operators", "packed")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "step"),
    [
        *(pytest.param(cases, 1, id=cases.__name__) for cases in CASES if cases != one_number),
        pytest.param(one_number, 3, id="every third of one_number"),
        pytest.param(one_number, 1, id="one_number", marks=pytest.mark.long),
    ],
)
def test_no_member_of_a_small_manifest_uses_much_memory(
    tmp_path: Path, cases: Any, step: int
) -> None:
    """The manifest is read or refused. The process neither runs out of memory nor prints a
    traceback. Every third document has each number of the manifest, with one of its four values.
    """
    document = made(tmp_path / "store")
    names = []
    for number, changed in enumerate(islice(cases(document), 0, 2_000, step)):
        name = tmp_path / f"{number}.json"
        name.write_bytes(bytes_of(changed))
        assert name.stat().st_size < 4 * 2**20
        names.append(str(name))
    assert names
    ran = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path / "store"), *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("", "")
    assert ran.returncode == 0


def bytes_of(document: dict[str, Any]) -> bytes:
    if "raw" not in document:
        return document_bytes(document)
    text: str = document["raw"]
    return seal_document(text.encode().removesuffix(b"}"))
