"""``python -m tests.endurance --minutes 120 --to FOLDER``: the long run.

The folder gets the samples, the figures and ``report.md``, which has the bounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.endurance.report import write_report
from tests.endurance.run import run


def main() -> int:
    """Run; the exit code is 1 if a state was wrong, or a figure exceeded its bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--to", type=Path, required=True, help="an empty folder for the results")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.to.exists() and any(options.to.iterdir()):
        parser.error(f"{options.to} is not empty; remove it, or name another folder")
    problems = run(options.to, options.minutes, options.seed)
    bounds = write_report(options.to)
    problems += [str(bound) for bound in bounds if not bound.holds]
    for problem in problems:
        print(problem)
    print(f"{options.to / 'report.md'}: {len(bounds)} bounds, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
