"""Behavior that all verbs share: help, exit status, settings, errors, streams."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import fields

from statestore import IcebergTable, StateStore, __version__, errors
from statestore.catalog.holds import Pin, pin_to_json
from statestore.cli.command import (
    CLOSED_PIPE,
    INTERRUPTED,
    Root,
    Verb,
    exit_statuses,
)
from statestore.cli.main import cli, main
from statestore.cli.verbs import list as list_verb
from statestore.errors import StateStoreError
from statestore.format.names import pin_path
from statestore.settings import Settings
from tests.cli.conftest import JOB
from tests.interop.flink.goldens import FOLDER
from tests.support.iceberg_config import configure
from tests.syntax import ROOT

pytestmark = pytest.mark.slow

Run = Callable[..., Result]


def commands(group: Root, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield all verbs of a command group. The verbs of a nested group have its name as a prefix."""
    context = click.Context(group)
    for name in group.list_commands(context):
        verb = group.get_command(context, name)
        assert verb is not None
        yield f"{before}{name}", verb
        if isinstance(verb, Root):
            yield from commands(verb, f"{before}{name} ")


COMMANDS = dict(commands(cli))
GROUPS = {"": cli} | {name: verb for name, verb in COMMANDS.items() if isinstance(verb, Root)}
VERBS = sorted(COMMANDS)
PYTHON = [
    sys.executable,
    "-c",
    "import sys; from statestore.cli.main import main; sys.exit(main())",
]


def every_error(kind: type[StateStoreError] = StateStoreError) -> Iterator[type[StateStoreError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from every_error(child)


def test_the_verbs() -> None:
    wanted = (
        "bisect bootstrap check compact config contract copy demo diff edit expire flink forget gc "
        "get kafka list plan publish query rehearse rekey repair restore savepoint show spark "
        "trend ui upgrade verify"
    )
    assert wanted.split() == [name for name in VERBS if " " not in name]
    within = [
        "flink export",
        "flink gc",
        "flink import",
        "flink plan",
        "flink repack",
        "flink show",
        "kafka translate",
        "spark bootstrap",
        "spark export",
        "spark import",
        "spark progress",
        "spark repartition",
        "spark show",
    ]
    assert [name for name in VERBS if " " in name] == within


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_reads_back(run: Run, verb: str) -> None:
    done = run(*verb.split(), "--help")
    assert (done.exit_code, done.stderr) == (0, "")
    for title in ("Examples:", "Exit status:" if verb in GROUPS else "Prints:"):
        assert f"\n{title}\n" in done.stdout
    assert not re.search(r"\w\.\.\.$", done.stdout.partition("\n\n")[2], re.MULTILINE)
    if verb not in GROUPS:
        assert "'statestore --help' has --output, --config and the exit statuses." in done.stdout
        return
    for name in GROUPS[verb].list_commands(click.Context(cli)):
        sentence = " ".join((COMMANDS[f"{verb} {name}".strip()].help or "").split()).rstrip(".")
        assert f" {name} {sentence}" in " ".join(done.stdout.split())
    table = done.stdout.partition("Exit status:\n")[2]
    found = {int(code): text for code, text in re.findall(r"^  (\d+) +(.*)", table, re.MULTILINE)}
    codes = {error.exit_code for error in every_error()}
    assert set(found) == {0, INTERRUPTED, CLOSED_PIPE, *codes}
    for code, text in exit_statuses().items():
        assert text.startswith(found[code])


def test_the_description_is_one_sentence() -> None:
    for verb in VERBS:
        text = (COMMANDS[verb].help or "").strip()
        assert text.endswith(".")
        assert text.count(". ") == 0


def examples() -> list[str]:
    # The examples of the verbs for Spark's and Flink's checkpoints need such checkpoints: see
    # test_spark.py, test_flink.py and test_flink_show.py in verbs/. Those for Kafka need two
    # clusters: see tests/services/test_kafka_mirror.py. Those that serve pages run in tests/ui, and
    # those that need a job in tests/contract.
    elsewhere = ("spark", "flink", "kafka", "check", "contract", "rehearse")
    shown = [verb for name, verb in COMMANDS.items() if not name.startswith(elsewhere)]
    each = [e for c in (cli, *shown) if isinstance(c, Root | Verb) for e in c.examples]
    return [e for e in each if "statestore ui" not in e or "--to " in e]


def ctrl_c(seconds: float) -> None:
    raise KeyboardInterrupt


def write_tables() -> None:
    """Write the tables of the examples; the store must not have their state."""
    shutil.rmtree("fraud")
    rows = pa.table({"user_id": ["u1", "u2"], "total": [1, 2]})
    pq.write_table(rows, "totals.parquet")
    Path("totals.csv").write_text("user_id,total\nu1,1\nu2,2\n")
    Path("purchases.csv").write_text("user_id,purchases,total\nu1,1,2.50\n")
    shutil.copy(FOLDER / "2.3_plan.json", "job.json")
    pq.write_table(pa.table({"rule": ["large"], "limit": [100]}), "rules.parquet")
    Path("events").mkdir()
    pq.write_table(rows.rename_columns(["user_id", "amount"]), "events/1.parquet")


@pytest.mark.parametrize("example", examples())
def test_examples_work(
    run: Run, filled: Path, tmp_path: Path, monkeypatch: Any, example: str
) -> None:
    # Some examples change the store.
    shutil.copytree(filled, "fraud")
    StateStore.open("fraud").maintenance.savepoint("before-upgrade")
    if "0d2f61c8a1b94d7fb5f0c7a9e6d83b12" in example:
        pin = Pin("0d2f61c8a1b94d7fb5f0c7a9e6d83b12", 1, "me", 2**62)
        Path("fraud/pins").mkdir()
        Path("fraud", pin_path(pin.token)).write_bytes(pin_to_json(pin))
    ran: list[str] = []

    def run_demo(directory: str, *, output: str) -> int:
        ran.append(directory)
        return 0

    demo = SimpleNamespace(run=run_demo)
    real = importlib.import_module
    monkeypatch.setattr(
        importlib, "import_module", lambda name: demo if name == "statestore.demo" else real(name)
    )
    monkeypatch.setattr(list_verb, "pause", ctrl_c)
    Path("new-job.toml").write_text(JOB)
    if "bootstrap" in example:
        write_tables()
    if "publish" in example:
        configure(monkeypatch, tmp_path)
    if "publish --remove" in example:
        table = IcebergTable("fraud.totals", catalog="lake")
        StateStore.open("fraud").maintenance.publish_iceberg("totals-by-user", "totals", table)
    words = shlex.split(example)
    env = dict(word.split("=", 1) for word in words[: words.index("statestore")])
    done = run(*words[words.index("statestore") + 1 :], env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    # The shell gets no statement here.
    assert done.stdout or ran or words[1:3] == ["query", "--checkpoint"]


@pytest.mark.parametrize("kind", list(every_error()), ids=lambda kind: str(kind.__name__))
def test_every_error_leaves_with_its_code(
    run: Run, monkeypatch: Any, kind: type[StateStoreError]
) -> None:
    def fail(url: str, **options: object) -> StateStore:
        error = kind("it went wrong")
        error.add_note("while testing")
        raise error

    monkeypatch.setattr(StateStore, "open", fail)
    done = run("show", "--store", "s")
    assert done.exit_code == kind.exit_code
    assert (done.stdout, done.stderr) == ("", "error: it went wrong\n  while testing\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["lst"], 2, "unknown command 'lst'; did you mean 'list'?\nTry: statestore --help"),
        (["xyz"], 2, "unknown command 'xyz'; the commands are bisect, bootstrap, check, compact"),
        (["list"], 2, "no store is named: pass --store URL, or set STATESTORE_URI\nTry: "),
        (["list", "--sture", "x"], 2, "no such option '--sture'"),
        (["spark", "bootstrap", "nope"], 2, "JOB 'nope' must name a function, as job.py:build"),
        (["list", "x", "--store", "fraud"], 2, "got unexpected extra argument (x)\nTry: "),
        (
            ["plan", "--parallelism", "x", "--store", "fraud"],
            2,
            "invalid value for '--parallelism'",
        ),
        (["list", "--output", "xml", "--store", "fraud"], 2, "invalid value for '--output'"),
        (["show", "x", "--store", "fraud"], 10, "no savepoint 'x' in "),
        *(
            (
                [verb, "--state", "/totals", *others],
                2,
                "invalid value for '--state': '/totals' must have the form OPERATOR[/STATE]\n",
            )
            for verb, *others in (
                ["show"],
                ["plan"],
                ["restore", "--to", "x"],
                ["trend"],
                ["forget", "--key", "u1"],
                ["rekey", "--max-parallelism", "32"],
            )
        ),
        (
            ["edit", "--state", "totals-by-user"],
            2,
            "invalid value for '--state': 'totals-by-user' must have the form OPERATOR/STATE",
        ),
        (["list", "--store", "oss://b/x"], 2, "a store cannot use oss://"),
        (["list", "--store", "nowhere"], 10, "no store at "),
        (["list", "--store", "fraud/statestore.json"], 10, ""),
        (["show", "9", "--store", "fraud"], 10, "no checkpoint 9 in "),
        (["show", "--state", "x", "--store", "fraud"], 10, "no operator 'x' in checkpoint 2"),
        (
            ["show", "--state", "totals-by-shop/x", "--store", "fraud"],
            10,
            "no state 'x' in operator 'totals-by-shop' of checkpoint 2; it has 'totals'",
        ),
        (
            ["plan", "--parallelism", "9", "--store", "fraud"],
            12,
            "parallelism 9 is above the stored max",
        ),
        (["plan", "--parallelism", "0", "--store", "fraud"], 2, "parallelism "),
        (
            ["plan", "--placement", "evenly"],
            2,
            "--placement places subtasks on hosts: pass --hosts HOST=N,…",
        ),
        (
            ["trend", "--until", "1GB", "--until", "2GB"],
            2,
            "invalid value for '--until': pass at most one size and one time",
        ),
        (["diff", "1", "--examples", "-1"], 2, "invalid value for '--examples': -1 is not in the"),
        (
            ["savepoint", "--remove", "--store", "fraud"],
            2,
            "pass the NAME of a savepoint or the token of a pin",
        ),
        (
            ["rekey", "--state", "totals-by-user", "--key-column", "country"],
            2,
            "--key-column is of one state: pass --state OPERATOR/STATE",
        ),
        (
            ["restore", "--to", "x", "--allow-non-restored-state", "--store", "fraud"],
            2,
            "allow_non_restored_state (--allow-non-restored-state) requires a job graph (--graph)",
        ),
        (
            ["config", "--config", "nowhere.toml"],
            2,
            "the settings file nowhere.toml does not exist",
        ),
    ],
)
def test_an_error_is_one_sentence(
    run: Run, fraud: Path, arguments: list[str], code: int, message: str
) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(f"error: {message}")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("group", [[], ["flink"]])
def test_a_group_without_a_command_shows_its_help(run: Run, group: list[str]) -> None:
    done = run(*group)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == run(*group, "--help").stdout


def test_the_help_of_a_command_names_its_settings() -> None:
    """Except those of all commands."""
    of_all = {"store", "output", "parallel_streams", "storage_options"}
    names = {field.name for field in fields(Settings)} - of_all
    found = 0
    for verb in COMMANDS.values():
        assert verb.callback is not None
        text = Path(inspect.getfile(inspect.unwrap(verb.callback))).read_text()
        used = names & {*re.findall(r"\bsettings\.(\w+)", text)}
        if isinstance(verb, Verb) and used:
            named = {*re.findall(r"\w+", verb.prints.lower().replace("statestore_", ""))}
            assert used <= named, verb.name
            found += len(used)
    assert found > 10


def test_notes_follow_the_sentence(run: Run, fraud: Path) -> None:
    done = run("plan", "--parallelism", "9", "--store", fraud)
    assert done.stderr.splitlines()[1].startswith("  while planning state ")


def test_common_options_are_accepted_before_and_after_the_verb(run: Run, fraud: Path) -> None:
    before = run("--output", "json", "--store", fraud, "show", "1")
    after = run("show", "1", "--store", fraud, "--output", "json")
    assert json.loads(before.stdout)["store_id"] == json.loads(after.stdout)["store_id"]
    both = run("--store", "nowhere", "show", "1", "--store", fraud)
    assert both.exit_code == 0


def test_a_command_without_a_store_refuses_one(run: Run) -> None:
    done = run("flink", "plan", "job.json", "--store", "orders")
    assert (done.exit_code, done.stderr.splitlines()[0]) == (2, "error: no such option '--store'")
    assert "--store" not in run("flink", "plan", "--help").stdout


def test_the_help_says_which_options_are_repeatable(run: Run) -> None:
    text = " ".join(run("edit", "--help").stdout.split())
    assert text.count("Repeatable.") == 5
    assert "--delete KEY Remove a key. Repeatable." in text


def test_the_environment_names_the_store(run: Run, fraud: Path) -> None:
    done = run("list", env={"STATESTORE_URI": str(fraud), "STATESTORE_OUTPUT": "json"})
    assert [row["checkpoint_id"] for row in json.loads(done.stdout)["checkpoints"]] == [1, 2]
    assert run("list", "--store", "nowhere", env={"STATESTORE_URI": str(fraud)}).exit_code == 10


def test_config_shows_the_origin_of_each_value(run: Run) -> None:
    Path("mine.toml").write_text('zstd_level = 9\ntable_format = "parquet"\n')
    done = run(
        *("config", "--config", "mine.toml", "--output", "json"),
        env={"STATESTORE_ZSTD_LEVEL": "3", "STATESTORE_URI": "s3://b/x"},
    )
    found = {s["name"]: (s["value"], s["source"]) for s in json.loads(done.stdout)["settings"]}
    assert [*found] == [field.name for field in fields(Settings)]
    assert {name: of for name, of in found.items() if of[1] != "default"} == {
        "store": ("s3://b/x", "environment STATESTORE_URI"),
        "output": ("json", "argument --output"),
        "table_format": ("parquet", "file mine.toml"),
        "zstd_level": (3, "environment STATESTORE_ZSTD_LEVEL"),
    }
    assert found["memory_bytes"] == (2**28, "default")
    text = run("config", env={"STATESTORE_CONFIG": "mine.toml"})
    assert re.search(r"^zstd_level +9 +level +1 +file mine.toml$", text.stdout, re.MULTILINE)


def test_an_invalid_setting_is_named(run: Run) -> None:
    Path("mine.toml").write_text("zstd_levl = 9\n")
    done = run("config", "--config", "mine.toml")
    assert done.exit_code == 2
    assert "mine.toml: unknown setting 'zstd_levl'; did you mean 'zstd_level'?" in done.stderr


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"statestore {__version__}\n"


def test_demo_passes_on_its_status_and_directory(run: Run, monkeypatch: Any) -> None:
    calls: list[tuple[str, str]] = []

    def run_demo(directory: str, *, output: str) -> int:
        calls.append((directory, output))
        return 7

    demo = SimpleNamespace(run=run_demo)
    monkeypatch.setattr(importlib, "import_module", lambda name: demo)
    assert run("demo", "here", "--output", "json").exit_code == 7
    assert run("demo").exit_code == 7
    assert calls == [("here", "json"), ("statestore-demo", "text")]


def test_demo_names_the_missing_package(run: Run, monkeypatch: Any) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="pyspark")

    monkeypatch.setattr(importlib, "import_module", missing)
    done = run("demo", "here")
    assert done.exit_code == errors.MissingDependencyError.exit_code
    assert done.stderr.startswith("error: pyspark is not installed, but the demo requires it")


def test_a_bug_keeps_its_traceback(monkeypatch: Any) -> None:
    def buggy(*_: object, **__: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(StateStore, "open", buggy)
    done = CliRunner().invoke(cli, ["show", "--store", "s"])
    assert isinstance(done.exception, KeyError)


def test_ctrl_c_exits_130(run: Run, monkeypatch: Any) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StateStore, "open", interrupted)
    done = run("show", "--store", "s")
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.strip() == "interrupted"


def test_main_returns_the_status(fraud: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--store", str(fraud)]) == 0
    assert main(["show", "9", "--store", str(fraud)]) == 10
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"statestore {__version__}\n")


def process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("STATESTORE", "FORCE"))}
    return subprocess.run(
        [*PYTHON, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env=plain | environment,
        timeout=120,
        check=False,
    )


def test_a_pipe_gets_plain_whole_lines(filled: Path) -> None:
    done = process("show", COLUMNS="40", STATESTORE_URI=str(filled))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout
    assert f"checkpoint 2 of {filled}\n" in done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_an_encoding_without_our_characters_gets_ascii(tmp_path: Path) -> None:
    path = tmp_path / "größe"
    store = StateStore.open(str(path), table_format="parquet")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("zähler", "s", [{"k": "ä"}], key="k")
    for arguments in (["show"], ["show", "--output", "json"], ["plan", "--parallelism", "3"]):
        done = process(*arguments, "--store", path, PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert done.stdout.isascii()
    assert json.loads(process("show", "--output", "json", "--store", path).stdout)


def test_a_reader_that_closes_the_pipe_causes_no_traceback(filled: Path) -> None:
    command = [*PYTHON, "show", "--output", "json", "--store", str(filled)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 141


def test_an_interrupted_restore_leaves_an_empty_target(filled: Path, tmp_path: Path) -> None:
    slow = (
        "import os, signal, sys; from statestore.restore import export\n"
        "write = export.write_rows\n"
        "def killed(*args, **kw):\n"
        "    os.kill(os.getpid(), signal.SIGINT); return write(*args, **kw)\n"
        "export.write_rows = killed\n"
        "from statestore.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", slow, "restore", "--to", tmp_path / "out", "--store", filled],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip() == "interrupted"
    assert list((tmp_path / "out").iterdir()) == []


def test_help_imports_no_slow_modules() -> None:
    """Also no verb: their table is read from the text of their modules."""
    code = (
        "import sys; from statestore.cli.main import main; main(['--help'])\n"
        "slow = {'pyspark', 'pyarrow', 'numpy', 'deltalake', 'fsspec', 'rich', 'msgspec'}\n"
        "verbs = [name for name in sys.modules if name.startswith('statestore.cli.verbs')]\n"
        "print('loaded', *slow & set(sys.modules), *verbs)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded"


def test_every_verb_of_a_module_is_listed_under_its_heading() -> None:
    declared = {
        (value.section, value.name, " ".join((value.help or "").split()).rstrip("."))
        for file in Path(list_verb.__file__).parent.glob("*.py")
        for value in vars(importlib.import_module(f"statestore.cli.verbs.{file.stem}")).values()
        if isinstance(value, Verb | Root)
    }
    listed = {
        (section, name, verb.does)
        for group in GROUPS.values()
        for section, verbs in group.sections.items()
        for name, verb in verbs.items()
    }
    assert listed == declared
    assert len(listed) == len(VERBS)


def test_a_superfluous_path_is_suggested_as_the_store(run: Run) -> None:
    done = run("list", "./shop")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "to name a store, use --store ./shop" in done.stderr
    assert "--store" not in run("list", "shop", "latest").stderr


def test_a_zip_file_has_all_verbs(tmp_path: Path) -> None:
    """Spark's ``--py-files`` takes one; a wheel is one, too."""
    archive = shutil.make_archive(str(tmp_path / "files"), "zip", ROOT, "statestore")
    words = [sys.executable, "-m", "statestore", "--help"]
    helps = [
        subprocess.run(
            words,
            env=os.environ | {"PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        for path in (archive, str(ROOT))
    ]
    assert [one.returncode for one in helps] == [0, 0], helps[0].stderr
    assert helps[0].stdout == helps[1].stdout
