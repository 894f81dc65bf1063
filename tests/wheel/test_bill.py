"""The bill of materials and the provenance that ``make dist`` writes."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from tests.wheel import bill
from tests.wheel.bill import Commit, Package, bill_of, provenance_of
from tests.wheel.run import write_documents

PACKAGES = [Package("statestore", "9.0", "Apache-2.0"), Package("click", "8.5", None)]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    wheel = tmp_path / "statestore-9.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    return wheel


def test_the_bill_has_the_wheel_its_packages_and_the_files_of_others(wheel: Path) -> None:
    found = bill_of(wheel, PACKAGES)
    own = found["metadata"]["component"]
    assert own["purl"] == "pkg:pypi/statestore@9.0"
    assert own["hashes"][0]["content"] == hashlib.sha256(b"wheel").hexdigest()
    purls = [component["purl"] for component in found["components"]]
    assert purls[0] == "pkg:pypi/click@8.5"
    assert any(purl.startswith("pkg:npm/%40picocss/pico@") for purl in purls)
    assert len({*purls}) == len(purls)
    with pytest.raises(AssertionError):
        bill_of(wheel, [Package("statestore", "8.0", None)])


def test_the_provenance_names_each_file_and_the_commit(wheel: Path) -> None:
    found = provenance_of([wheel], Commit("ab" * 20, 1_800_000_000))
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert found["subject"] == [{"name": wheel.name, "digest": {"sha256": digest}}]
    source = found["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert source == {"name": "source", "digest": {"gitCommit": "ab" * 20}}


def test_only_a_clean_clone_has_a_provenance(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path_factory.mktemp("clone")
    monkeypatch.setattr(bill, "ROOT", clone)
    assert Commit.of_clean_tree() is None
    (clone / "requirements.lock").write_text("click==8.5\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "a")):
        subprocess.run([*git, *command], cwd=clone, check=True)
    write_documents(wheel, bill_of(wheel, PACKAGES))
    statement = json.loads(wheel.with_name("statestore-9.0.intoto.json").read_text())
    names = [subject["name"] for subject in statement["subject"]]
    assert names == ["statestore-9.0-py3-none-any.whl", "statestore-9.0.cdx.json"]
    (clone / "changed").touch()
    assert Commit.of_clean_tree() is None
