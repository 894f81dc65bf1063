"""Install a wheel into a fresh environment and test it; ``make dist`` runs this.

python -m tests.wheel.run dist/statestore-0.2.0-py3-none-any.whl
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.wheel.environment import Environment


def main(arguments: list[str]) -> int:
    """Test the wheel and print its size; an AssertionError describes a failure."""
    [wheel] = arguments
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment.with_wheel(Path(wheel), Path(folder) / "environment")
        place = Path(folder) / "work"
        place.mkdir()
        environment.try_out(place)
        print(f"{wheel}: the README's example, verify, plan and restore run; {environment.sizes()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
