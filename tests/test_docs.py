"""What the documents show is run, page by page, and the demo prints what they show."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import tomllib
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import statestore.store
from docs.python_pages import PYTHON
from statestore import CheckpointWriter, RestoredCheckpoint, StateStore
from statestore.cli.main import cli
from statestore.demo import job, run, story
from tests.interop.flink.goldens import FOLDER, Golden
from tests.servers.kafka import kafka_broker
from tests.support.iceberg_config import configure
from tests.syntax import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

DOCS = ROOT / "docs"
COMPUTED = DOCS / "RESCALING.md"  # tests/test_rescaling.py runs its commands
WRITTEN = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), ROOT / "bench/README.md"]
RUN = ("python", "console")
# A block with printed output or with a file's content; a block in no language is a drawing.
SHOWN = ("", "text", "toml", "json", "yaml")


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(*each) for each in found]


def commands(block: Block) -> list[str]:
    return re.findall(r"^\$ (.+)$", block.text, re.MULTILINE)


RUNNING = [
    page
    for page in WRITTEN
    if page != COMPUTED and any(block.language in RUN for block in blocks(page))
]


@pytest.mark.long_cases(
    "docs/how/my-query.md",
    "docs/how/spark-queries.md",
    "docs/how/processor.md",
    "docs/how/flink.md",
    "docs/how/new-query.md",
    "docs/how/kafka.md",
    "docs/REPACK.md",
    "docs/how/live.md",
    "docs/how/processes.md",
    "docs/how/read.md",
)
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python as it stands, and every command, in their order, in one folder."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    if "flink show ./savepoint" in text or "repack ./savepoint" in text:
        unpacked = Golden("2.3_heap_canonical").unpack(tmp_path / "golden")
        shutil.copytree(unpacked, tmp_path / "savepoint")
    if "flink plan job.json" in text:
        shutil.copy(FOLDER / "2.3_plan.json", tmp_path / "job.json")
    if "`.pyiceberg.yaml`" in text:
        [config] = (block.text for block in blocks(page) if block.language == "yaml")
        configure(monkeypatch, tmp_path, config)
    with ExitStack() as stack:
        # Another test may have this port, and no broker has its own.
        ports = {"(9090)": "(0)"}
        if any("localhost:9092" in block.text for block in blocks(page) if block.language in RUN):
            broker = stack.enter_context(kafka_broker(tmp_path / "broker"))
            produce(broker.bootstrap)
            ports["localhost:9092"] = broker.bootstrap
        for block in blocks(page):
            run_block(block, page, ports)


def produce(bootstrap: str) -> None:
    """As many records as the offsets of the pages say were read, and more."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic("orders", 2, 1)]).values():
        made.result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(300):
        producer.produce("orders", b"", partition=number % 2)
    assert producer.flush(30) == 0


def run_block(block: Block, page: Path, ports: dict[str, str] | None = None) -> None:
    if block.language == "python":
        text = block.text
        for port, other in (ports or {}).items():
            text = text.replace(port, other)
        exec(compile(text, str(page), "exec"), {})
    elif block.language == "console":
        assert commands(block)
        for line in commands(block):
            run_command(line)


def run_command(line: str) -> None:
    """Run a command of statestore's; of another one, see that what it names is there."""
    match shlex.split(line):
        case ["statestore", *arguments]:
            done = CliRunner().invoke(cli, arguments, prog_name="statestore")
            assert done.exit_code == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            assert done.stdout, line
        case ["pip", "install", place]:
            named = re.fullmatch(r"\.(?:\[(.+)\])?", place)
            assert named, line
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert {*(named[1] or "all").split(",")} <= {*project["optional-dependencies"]}, line
        case ["make", target, *_]:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text()
        case ["python", "-m", module, settings, "--store", _]:
            assert (ROOT / f"{module.replace('.', '/')}.py").exists()
            assert (ROOT / settings).exists()
        case other:
            pytest.fail(f"a command that no test runs: {other}")


def test_the_first_example_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """README.md and docs/index.md have the same example, which needs no extra (tests/wheel)."""
    monkeypatch.chdir(tmp_path)
    start = blocks(DOCS / "index.md")
    example = next(place for place, block in enumerate(start) if block.language == "python")
    code, printed, shown, drawing, *_ = start[example:]
    assert [code, printed] == [*blocks(ROOT / "README.md")[1:3]]
    run_block(code, DOCS / "index.md")
    assert capsys.readouterr().out == printed.text
    plan = CliRunner().invoke(cli, shlex.split(commands(shown)[1])[1:]).stdout
    assert drawing.text in plan
    assert "rewrites nothing" in plan


def test_each_block_is_run_or_shown() -> None:
    """No block is in a language that neither runs nor is output."""
    others = {
        (page.name, block.language)
        for page in WRITTEN
        if page != COMPUTED
        for block in blocks(page)
        if block.language not in (*RUN, *SHOWN)
    }
    assert others == set()


def test_most_pages_show_something_that_runs() -> None:
    """So that a block whose fence is not found does not go unnoticed."""
    assert len(RUNNING) > 18
    assert sum(len(commands(block)) for page in RUNNING for block in blocks(page)) > 50
    fences = {page.name: page.read_text().count("\n```") for page in RUNNING}
    assert fences == {page.name: 2 * len(blocks(page)) for page in RUNNING}


def test_readme_is_short() -> None:
    """One screen and a half, and a table."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def masked(text: str) -> list[str]:
    """Return the lines without what differs from run to run: times, and where the store lies."""
    text = re.sub(r"\d+(\.\d+)? (ms|s|min)\b", "# s", text.strip())
    text = re.sub(r"\d+$", "#", text, flags=re.MULTILINE)
    text = re.sub(r"(\S.*)?statestore --store \S+", "statestore --store #", text)
    return [re.sub(r" +", " ", line).strip() for line in text.splitlines() if line.strip()]


def shape(text: str) -> list[str]:
    """Return the lines also without numbers, digests and the widths of the drawn ranges."""
    lines = masked(re.sub(r"\b[0-9a-f]{16}\b", "#", text))
    widths = r" *─+ *| +(?=\])|(?<=\[) +"
    return [re.sub(widths, "", re.sub(r"[\d#][\d,.#]*", "#", line)) for line in lines]


@pytest.mark.long_cases("a slice")
@pytest.mark.parametrize(
    ("flights_per_month", "mask"),
    [(30, shape), pytest.param(None, masked, marks=pytest.mark.long)],
    ids=["a slice", "all flights"],
)
def test_the_demo_prints_what_is_shown(
    tmp_path: Path,
    spark: SparkSession,
    capfd: pytest.CaptureFixture[str],
    flights_per_month: int | None,
    mask: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The demo equals an uninterrupted run, and prints the lines of its page, which has a "…" for
    what it leaves out. Over all flights it also prints the page's numbers.
    """
    assert spark is not None
    directory = tmp_path / "statestore-demo"
    if flights_per_month is not None:  # with few files, micro-batches and Delta commits too
        monkeypatch.setattr(job, "MAX_PARALLELISM", 16)
        monkeypatch.setattr(job, "BATCHES_TO_HALF", 1)
        monkeypatch.setattr(story, "TABLE_FORMAT", "parquet")
    assert run(str(directory), flights_per_month=flights_per_month) == 0
    printed, progress = capfd.readouterr()
    assert printed.rstrip().endswith(f"statestore --store {directory}/store show latest")
    assert "parallelism 7, snapshot, auto: " in progress
    done, total = progress.splitlines()[-1].partition(" ")[0].strip("[]").split("/")
    assert done == total
    assert StateStore.open(str(directory / "store")).checkpoints() == (1, 2, 3)
    (shown,) = (block.text for block in blocks(DOCS / "index.md") if "flights" in block.text)
    whole = "\n".join(mask(printed))
    parts = ["\n".join(mask(part)) for part in shown.split("…")]
    assert len(parts) == 2
    assert all(part in whole for part in parts)


def test_links_lead_somewhere() -> None:
    """Every relative link names a file of the repository and a heading in it, or a page that the
    site makes, whose headings its build looks for.
    """
    for page in WRITTEN:
        for target, heading in re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", page.read_text()):
            made = re.search(r"(^|/)(benchmarks|changelog|reference/[\w/-]+)\.md$", target)
            if target.startswith("http") or made:
                continue
            assert os.path.exists(page.parent / target), f"{page.name}: {target}"  # noqa: PTH110
            if heading:
                found = anchors(page.parent / target)
                assert heading in found, f"{page.name}: {target}#{heading}"


def test_modules_that_a_page_or_a_docstring_names_are_there() -> None:
    folders = ("statestore", "jobs", "tests", "bench", "docs")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    there = [f"/{path.relative_to(ROOT)}" for path in sources]
    example = {"first.py"}  # of docs/index.md
    missing = {
        (page.name, name)
        for page in (*WRITTEN, ROOT / "CONTRIBUTING.md", *sources)
        for name in re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`", page.read_text())
        if name not in example and not any(path.endswith(f"/{name}") for path in there)
    }
    assert missing == set()


def anchors(page: Path) -> set[str]:
    """Return what links call a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PUBLIC = {
    "store": StateStore,
    "StateStore": StateStore,
    "checkpoint": CheckpointWriter,
    "restored": RestoredCheckpoint,
}
CALL = re.compile(rf"\b({'|'.join(PUBLIC)})((?:\.[a-zA-Z_]+)+)\(")


def calls(text: str) -> set[tuple[str, str]]:
    """Return the methods of our own classes that a page calls: what of, and the dotted name."""
    return {(owner, names.lstrip(".")) for owner, names in CALL.findall(text)}


def is_there(owner: type[Any], names: str) -> bool:
    """Return whether a dotted name leads to a method, by way of properties."""
    name, _, rest = names.partition(".")
    member = inspect.getattr_static(owner, name, None)
    if not rest:
        return isinstance(member, classmethod) or callable(member)
    return isinstance(member, property) and is_there(
        get_type_hints(member.fget, vars(statestore.store))["return"], rest
    )


def test_methods_that_a_page_calls_are_there() -> None:
    found = {
        (page.relative_to(ROOT).as_posix(), owner, names)
        for page in WRITTEN
        for owner, names in calls(page.read_text())
    }
    assert len(found) > 30
    assert [one for one in sorted(found) if not is_there(PUBLIC[one[1]], one[2])] == []


def classes() -> dict[str, list[type[Any]]]:
    """Return the classes of the reference by their name."""
    found: dict[str, list[type[Any]]] = {}
    for _, packages, objects in PYTHON.values():
        paths = [f"{package}.{n}" for package in packages for n in import_module(package).__all__]
        for path in (*paths, *objects):
            module, _, name = path.rpartition(".")
            value = getattr(import_module(module), name)
            if inspect.isclass(value):
                found.setdefault(name, []).append(value)
    return found


def missing_members(text: str) -> list[str]:
    """Return the names such as ``StateStore.restore`` in a text that no class has."""
    of_class = classes()
    named = re.findall(rf"\b({'|'.join(of_class)})\.([a-z_]\w*)", text)
    return [
        f"{name}.{member}"
        for name, member in named
        if not any(
            hasattr(value, member) or member in getattr(value, "__dataclass_fields__", ())
            for value in of_class[name]
        )
    ]


def test_members_that_a_page_names_are_there() -> None:
    named = {page.name: missing_members(page.read_text()) for page in WRITTEN}
    assert {name: missing for name, missing in named.items() if missing} == {}
    assert missing_members("`StateStore.expire` and `StateStore.open`") == ["StateStore.expire"]


def test_a_method_that_is_not_there_is_found() -> None:
    text = "`store.expire(retain=1)`, `store.maintenance.expire(retain=1)`, `restored.nothing()`"
    missing = {call for call in calls(text) if not is_there(PUBLIC[call[0]], call[1])}
    assert missing == {("store", "expire"), ("restored", "nothing")}
