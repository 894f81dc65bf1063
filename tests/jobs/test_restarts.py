"""Attempts under every restart strategy, with a test clock: nothing waits, and no JVM starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

import statestore
from jobs.job import Attempt, Job, JobSettings, job_options, load_settings, run_attempts
from statestore import errors
from statestore.cli.command import Invocation, pass_invocation
from statestore.cli.output import Output
from statestore.errors import (
    CommitConflictError,
    DamagedFileError,
    LateCommitError,
    MissingDependencyError,
    SettingsError,
    StateStoreError,
    StorageError,
    StoreNotFoundError,
)
from statestore.jobgraph.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)
from statestore.restarts import RestartClock, is_recoverable, run_with_restarts

pytestmark = pytest.mark.spark


class Settings(JobSettings, frozen=True, kw_only=True):
    number: int = 1


@dataclass
class Fake:
    """A clock that only sleeping advances, and work that takes ``work_ms``. It records
    the events.
    """

    strategy: RestartStrategy
    failures: int
    work_ms: int = 100
    error: Callable[[], BaseException] = lambda: StorageError("no answer")
    now: int = 0
    started_ms: list[int] = field(default_factory=list)
    loaded_ms: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def load(self) -> None:
        self.loaded_ms.append(self.now)

    def work(self) -> int:
        self.started_ms.append(self.now)
        self.now += self.work_ms
        if len(self.started_ms) <= self.failures:
            raise self.error()
        return len(self.loaded_ms)

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1000)

    def run(self, between: Callable[[int, int], int] = lambda low, high: high) -> tuple[int, int]:
        return self.run_with(RestartClock(lambda: self.now, self.sleep, between))

    def run_with(self, clock: RestartClock) -> tuple[int, int]:
        self.load()
        done = run_with_restarts(
            self.strategy, self.work, prepare=self.load, on_restart=self.said.append, clock=clock
        )
        return done, len(self.started_ms)


# --- The strategies -------------------------------------------------------------------------------


def test_without_a_strategy_the_first_failure_ends_the_job() -> None:
    fake = Fake(NoRestart(), failures=1)
    with pytest.raises(StorageError) as failed:
        fake.run()
    assert (fake.started_ms, fake.said) == ([0], [])
    assert not hasattr(failed.value, "__notes__")


def test_a_successful_job_has_one_attempt() -> None:
    fake = Fake(FixedDelay(), failures=0)
    assert fake.run() == (1, 1)
    assert (fake.loaded_ms, fake.said, fake.now) == ([0], [], 100)


def test_fixed_delay_gives_up_after_its_attempts() -> None:
    fake = Fake(FixedDelay(attempts=2, delay="5s"), failures=2)
    assert fake.run() == (3, 3)
    assert fake.started_ms == fake.loaded_ms == [0, 5_100, 10_200]
    fake = Fake(FixedDelay(attempts=2, delay="5s"), failures=3)
    with pytest.raises(StorageError) as failed:
        fake.run()
    assert failed.value.__notes__ == [
        "in attempt 3; the restart strategy allows no further attempt"
    ]
    assert (len(fake.started_ms), len(fake.said)) == (3, 2)


def test_failure_rate_gives_up_when_failures_exceed_the_rate() -> None:
    strategy = FailureRate(max_failures=2, interval="1s", delay="400ms")
    slow = Fake(strategy, failures=20, work_ms=200)  # failures at 200, 800, 1400, …
    assert slow.run() == (21, 21)
    assert slow.started_ms[:4] == [0, 600, 1_200, 1_800]
    fast = Fake(strategy, failures=20, work_ms=100)  # 100, 600, 1100: exactly the interval
    with pytest.raises(StorageError):
        fast.run()
    assert fast.started_ms == [0, 500, 1_000]


def test_exponential_delay_grows_and_resets_after_a_long_attempt() -> None:
    strategy = ExponentialDelay(
        initial_backoff="1s",
        max_backoff="3s",
        multiplier=2,
        jitter=0,
        reset_after="1m",
        attempts=3,
    )
    fake = Fake(strategy, failures=3)
    assert fake.run() == (4, 4)
    assert fake.started_ms == [0, 1_100, 3_200, 6_300]
    with pytest.raises(StorageError):
        Fake(strategy, failures=4).run()
    long = Fake(strategy, failures=9, work_ms=60_000)
    assert long.run() == (10, 10)
    assert long.started_ms[:3] == [0, 61_000, 122_000]


def test_jitter_is_drawn_by_the_clock() -> None:
    asked = []

    def between(low: int, high: int) -> int:
        asked.append((low, high))
        return high

    fake = Fake(ExponentialDelay(jitter=0.5), failures=1)
    assert fake.run(between) == (2, 2)
    assert (asked, fake.started_ms) == ([(-500, 500)], [0, 1_600])


def test_an_attempt_that_fails_immediately_is_counted() -> None:
    """A failure at the exact time of the restart would always belong to the previous attempt."""
    fake = Fake(ExponentialDelay(jitter=0, attempts=3), failures=10**6, work_ms=0)
    with pytest.raises(StorageError):
        fake.run()
    assert len(fake.started_ms) < 10


def test_a_sleep_that_ends_early_is_continued_and_a_long_one_is_split() -> None:
    fake = Fake(FixedDelay(delay=f"{2**63 - 1}ms"), failures=1)
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        # The sleep ends early at first. Later the clock jumps so far that the test ends.
        fake.now += round(seconds * 500) if len(naps) < 3 else 2**63

    assert fake.run_with(RestartClock(lambda: fake.now, sleep)) == (2, 2)
    assert naps == [86_400] * 3


def test_a_restart_reports_the_failure_and_the_next_attempt() -> None:
    fake = Fake(FixedDelay(delay="1500ms"), 1, error=lambda: StorageError("no answer\nat all"))
    fake.run()
    assert "".join(fake.said).splitlines() == [
        "attempt 1 failed: StorageError: no answer",
        "attempt 2 begins in 1.5 s",
    ]
    silent = Fake(FixedDelay(), 1, error=ConnectionResetError)
    silent.run()
    assert silent.said[0].startswith("attempt 1 failed: ConnectionResetError\n")
    text = "An error occurred while calling o9.load.\n: org.x.SparkException: [NO] It is.\n\tat …"
    java = Fake(FixedDelay(), 1, error=lambda: RuntimeError(text))
    java.run()
    assert java.said[0].startswith("attempt 1 failed: org.x.SparkException: [NO] It is.\n")
    text += (
        "\nCaused by: org.x.TaskException: a\n\tat …\nCaused by: org.y.TimeoutException: b\n\tat …"
    )
    caused = Fake(FixedDelay(), 1, error=lambda: RuntimeError(text))
    caused.run()
    assert caused.said[0].startswith("attempt 1 failed: org.y.TimeoutException: b\n")


# --- Recoverable errors ---------------------------------------------------------------------------


def own_errors(kind: type[StateStoreError] = StateStoreError) -> Iterator[type[StateStoreError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from own_errors(below)


def test_three_of_our_errors_are_recoverable() -> None:
    kinds = list(own_errors())
    assert {kind.__name__ for kind in kinds} == set(errors.__all__)
    assert {kind for kind in kinds if is_recoverable(kind("…"))} == {
        StorageError,
        CommitConflictError,
        LateCommitError,
    }


@pytest.mark.parametrize(
    "error",
    [OSError("disk"), ConnectionResetError(), TimeoutError(), RuntimeError("Spark"), KeyError("k")],
)
def test_external_errors_are_recoverable(error: Exception) -> None:
    assert is_recoverable(error)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), ModuleNotFoundError("no module 'x'")]
)
def test_exit_signals_and_missing_modules_are_not_recoverable(error: BaseException) -> None:
    assert not is_recoverable(error)


@pytest.mark.parametrize(
    ("raised", "recoverable"),
    [
        ("statestore.errors.StorageError: cannot read x", True),
        ("statestore.errors.DamagedFileError: x is cut short", False),
        ("statestore.errors.StorageError: a\n…\nstatestore.errors.NullKeyError: b", False),
        ("ValueError: in statestore.errorsome, File statestore/errors.py", True),
    ],
)
def test_a_spark_workers_error_is_recognized_by_name(raised: str, recoverable: bool) -> None:
    text = (
        f"[PYTHON_EXCEPTION] An exception was thrown\n  File x, line 3\n{raised}\n\tat org.apache"
    )
    assert is_recoverable(RuntimeError(text)) is recoverable


@pytest.mark.parametrize(
    "kind", [SettingsError, StoreNotFoundError, DamagedFileError, MissingDependencyError]
)
def test_unrecoverable_errors_do_not_wait(kind: type[StateStoreError]) -> None:
    fake = Fake(ExponentialDelay(), failures=1, error=lambda: kind("…"))
    with pytest.raises(kind):
        fake.run()
    assert (fake.started_ms, fake.said, fake.now) == ([0], [], 100)


# --- The settings ---------------------------------------------------------------------------------


def load(tmp_path: Path, text: str, *overrides: str) -> RestartStrategy:
    file = tmp_path / "f.toml"
    file.write_text(text)
    return load_settings(str(file), overrides, Settings).restart_strategy


@pytest.mark.parametrize(
    "text",
    [
        """
[restart-strategy]
type = "fixed-delay"
fixed-delay.attempts = 3
fixed-delay.delay = "2 s"
""",
        """
restart-strategy.type = "fixed-delay"
[restart-strategy.fixed-delay]
attempts = 3
delay = 2000
""",
        """
[restart-strategy]
type = "Fixed-Delay"
"fixed-delay.attempts" = "3"
"fixed-delay.delay" = "PT2S"
""",
    ],
)
def test_the_options_are_flinks_for_any_toml_nesting(text: str, tmp_path: Path) -> None:
    assert load(tmp_path, text) == FixedDelay(attempts=3, delay="2s")


def test_a_strategy_by_default_and_from_the_command_line(tmp_path: Path) -> None:
    assert load(tmp_path, "") == NoRestart()
    assert load(tmp_path, 'restart-strategy = "off"') == NoRestart()
    assert load(tmp_path, 'restart-strategy = "exponential-delay"') == ExponentialDelay()
    changes = (
        "type='failure-rate'",
        "failure-rate.delay='3 s'",
        "exponential-delay.jitter-factor=0.5",
    )
    overrides = [f"restart-strategy.{change}" for change in changes]
    assert load(tmp_path, "", *overrides) == FailureRate(delay="3s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[restart-strategy]\ntyp = "off"', "did you mean 'restart-strategy.type'"),
        ('[restart-strategy]\ntype = "fixed-dealy"', "did you mean 'fixed-delay'"),
        (
            '[restart-strategy]\ntype = "fixed-delay"\nfixed-delay.attempt = 3',
            "did you mean 'restart-strategy.fixed-delay.attempts'",
        ),
        ('[restart-strategy]\ntype = "fixed-delay"\nfixed-delay.attempts = true', "not True"),
        ('[restart-strategy]\ntype = "fixed-delay"\nfixed-delay.attempts = 1.5', "'1.5' is not"),
        ('[restart-strategy]\ntype = "fixed-delay"\nfixed-delay.delay = [1]', r"not \[1\]"),
        ("[restart-strategy]\nfixed-delay.attempts = 3", "'restart-strategy.type' is missing"),
        ("[restart-strategy]\n", "'restart-strategy.type' is missing"),
        (
            '[restart_strategy]\ntype = "off"',
            "unknown setting 'restart_strategy'; did you mean 'restart-strategy'",
        ),
        (
            '[restart-stategy]\ntype = "off"',
            "unknown setting 'restart-stategy'; did you mean 'restart-strategy'",
        ),
        ("numbr = 1", "unknown setting 'numbr'; did you mean 'number'"),
    ],
)
def test_an_invalid_strategy_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        load(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path}/f.toml: ")


# --- The command line -----------------------------------------------------------------------------

Run = Callable[..., int]


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a job with this work; while it waits, it calls ``sleep``."""
    now = 0

    def run(
        work: Callable[[Attempt[Settings]], dict[str, Any]],
        sleep: Callable[[], object],
        *arguments: str,
    ) -> int:
        def wait(seconds: float) -> None:
            nonlocal now
            now += round(seconds * 1000)
            sleep()

        @click.command("job", cls=Job)
        @job_options
        @pass_invocation
        def job(invocation: Invocation, file: str, changes: tuple[str, ...]) -> Output[Any]:
            load = partial(load_settings, file, changes, Settings)
            report = run_attempts(invocation, load, work)
            return Output(report, lambda page, report: page.line(f"{report}"))

        monkeypatch.setattr("jobs.job.RestartClock", lambda: RestartClock(lambda: now, wait))
        return int(job.main([*arguments], standalone_mode=False))

    return run


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_job_reads_its_file_again_and_reports_its_restarts(
    output: str, run_with: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.toml"
    file.write_text('number = 4\nrestart-strategy.type = "fixed-delay"')

    def work(attempt: Attempt[Settings]) -> dict[str, Any]:
        if attempt.settings.number == 4:
            raise StorageError("no answer")
        return {"number": attempt.settings.number}

    # The file then has no strategy any more, so the first one applies.
    changed = partial(file.write_text, "number = 7")
    assert run_with(work, changed, str(file), "--output", output) == 0
    out, err = capsys.readouterr()
    assert '"attempts": 2' in out.replace("'", '"')
    assert '"number": 7' in out.replace("'", '"')
    assert err.splitlines() == [
        "attempt 1 failed: StorageError: no answer",
        (
            "attempt 2 begins in 1 s: the job then reads the settings file again and reopens the "
            "store"
        ),
    ]


def no_answer(attempt: Attempt[Settings]) -> dict[str, Any]:
    raise StorageError("no answer")


def test_settings_that_became_invalid_end_the_job(
    run_with: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.toml"
    file.write_text('restart-strategy.type = "fixed-delay"')
    assert run_with(no_answer, partial(file.write_text, "number = true"), str(file)) == 2
    assert "number must be an integer, not true or false" in capsys.readouterr().err


def test_the_last_error_keeps_its_exit_code_and_names_the_attempt(
    run_with: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.toml"
    file.write_text('restart-strategy.type = "fixed-delay"')
    assert run_with(no_answer, lambda: None, str(file)) == 15
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "error: no answer",
        "  in attempt 2; the restart strategy allows no further attempt",
    ]


# --- From Python ----------------------------------------------------------------------------------


def test_a_custom_run_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake(FixedDelay(attempts=2, delay="5s"), failures=2)
    clock = RestartClock(lambda: fake.now, fake.sleep)
    assert statestore.run_with_restarts(fake.strategy, fake.work, clock=clock) == 0
    assert fake.started_ms == [0, 5_100, 10_200]
    assert [record.name for record in caplog.records] == ["statestore"] * 2
    assert caplog.messages[0].endswith("attempt 2 begins in 5 s")


def test_flinks_options_name_a_strategy() -> None:
    options = {
        "restart-strategy.type": "failure-rate",
        "restart-strategy.failure-rate.delay": "2 s",
    }
    assert statestore.jobgraph.restart_strategy_of(options) == statestore.jobgraph.FailureRate(
        delay="2s"
    )


@pytest.mark.parametrize("wrong", [None, "fixed-delay", 3, FixedDelay])
def test_an_invalid_strategy_is_refused_before_the_run(wrong: Any) -> None:
    with pytest.raises(
        errors.InvalidArgumentError, match="a restart strategy, for example FixedDelay"
    ):
        run_with_restarts(wrong, lambda: pytest.fail("it ran"))
