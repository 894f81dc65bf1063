"""Install a wheel into a fresh environment, test it, and say what is in it, for ``make dist``.

python -m tests.wheel.run dist/statestore-0.2.0-py3-none-any.whl
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.wheel.bill import Commit, bill_of, provenance_of
from tests.wheel.environment import Environment


def main(arguments: list[str]) -> int:
    """Test the wheel and print its size; an AssertionError describes a failure.

    Write the bill of materials and the provenance beside the wheel.
    """
    [wheel] = arguments
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment.with_wheel(Path(wheel), Path(folder) / "environment")
        place = Path(folder) / "work"
        place.mkdir()
        environment.try_out(place)
        print(f"{wheel}: the README's example, verify, plan and restore run; {environment.sizes()}")
        write_documents(Path(wheel), bill_of(Path(wheel), environment.packages()))
    return 0


def write_documents(wheel: Path, bill: dict[str, Any]) -> None:
    """Write the bill of materials, and the provenance of all that is beside the wheel."""
    place = wheel.with_name("-".join(wheel.name.split("-")[:2]))
    bill_file, provenance_file = (Path(f"{place}.{form}.json") for form in ("cdx", "intoto"))
    bill_file.write_text(json.dumps(bill, indent=1) + "\n")
    commit = Commit.of_clean_tree()
    if commit is None:
        print("there is no provenance, because files of this clone are not committed")
        return
    files = [file for file in wheel.parent.iterdir() if file != provenance_file]
    provenance_file.write_text(json.dumps(provenance_of(files, commit), indent=1) + "\n")
    print(f"{bill_file} and {provenance_file}, which RELEASING.md signs")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
