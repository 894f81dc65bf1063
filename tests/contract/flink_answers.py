"""What real Flink did with each pair of versions, recorded.

``python -m tests.contract.flink_answers`` asks Flink again, and writes the file. It has the
contract of each version as the text of a lock, and for each pair the answers by state backend.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from statestore.contract.flink_side import contract_of_plan, contract_of_savepoint
from statestore.contract.lock import lock_text
from tests.contract.evolved_jobs import BACKENDS, Pair, RealFlink
from tests.contract.flink_pairs import PAIRS
from tests.contract.sql_pairs import SQL_PAIRS, run_sql_pairs
from tests.servers.flink import VERSIONS, Flink, flink_with_avro
from tests.servers.flink_server import flink_server

__all__ = ["FILE", "Answer", "ask", "ask_sql", "read_answers", "real_flink"]

FILE = Path(__file__).parents[1] / "golden" / "flink" / "evolved.json.xz"


@dataclass(frozen=True)
class Answer:
    """The contracts of both versions as locks, and for each backend the first word of Flink."""

    old: str
    new: str
    backends: Mapping[str, str]

    @property
    def fits(self) -> bool:
        """Whether the new version starts with any backend, and its state is complete."""
        return set(self.backends.values()) == {"complete"}


@contextmanager
def real_flink(folder: Path) -> Iterator[RealFlink]:
    """Run both versions of Flink until the block ends."""
    newest, older = VERSIONS
    with ExitStack() as stack:
        servers = {}
        for version, flink in ((newest, flink_with_avro()), (older, Flink(older))):
            (folder / version).mkdir()
            servers[version] = stack.enter_context(
                flink_server(flink, folder / version, ["evolved"])
            )
        yield RealFlink(servers, folder)


def ask(real: RealFlink, pair: Pair) -> Answer:
    """Return what Flink does with a pair."""
    old, new = (
        lock_text(contract_of_savepoint(str(savepoint)))
        for savepoint in (real.savepoint(pair.old), real.savepoint(pair.new, "0"))
    )
    return Answer(
        old, new, {backend: _first_word(real.restart(pair, backend)) for backend in BACKENDS}
    )


def ask_sql(folder: Path) -> dict[str, Answer]:
    """Return what Flink does with all pairs of statements."""
    return {
        name: Answer(
            lock_text(contract_of_savepoint(str(old))),
            lock_text(contract_of_plan(str(plan))),
            {BACKENDS[0]: _first_word(answer)},
        )
        for name, (old, plan, answer) in run_sql_pairs(Flink(VERSIONS[0]), folder).items()
    }


def read_answers() -> dict[str, Answer]:
    """Return the recorded answers by the names of the pairs."""
    found = json.loads(lzma.decompress(FILE.read_bytes()))
    locks: list[str] = found["locks"]
    return {
        name: Answer(locks[old], locks[new], backends)
        for name, (old, new, backends) in found["pairs"].items()
    }


def _write_answers(answers: Mapping[str, Answer]) -> None:
    locks = sorted({lock for answer in answers.values() for lock in (answer.old, answer.new)})
    pairs = {
        name: (locks.index(answer.old), locks.index(answer.new), answer.backends)
        for name, answer in answers.items()
    }
    text = json.dumps({"locks": locks, "pairs": pairs}, indent=1, sort_keys=True)
    FILE.write_bytes(lzma.compress(text.encode()))


def _first_word(answer: str) -> str:
    return answer.partition(":")[0]


def main() -> int:
    """Ask Flink about all pairs, and write the answers; return an exit code."""
    with TemporaryDirectory() as name, real_flink(Path(name)) as real:
        answers = {pair.name: ask(real, pair) for pair in PAIRS}
    with TemporaryDirectory() as name:
        answers |= ask_sql(Path(name))
    _write_answers(answers)
    print(f"{len(answers)} pairs, of which {len(SQL_PAIRS)} of SQL: {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
