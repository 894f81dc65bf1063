"""Advice about the proxy that the environment sets for a server."""

from __future__ import annotations

import os

import pytest

from statestore.storage.addresses import delta_proxy_advice, proxy_advice

LOCAL = "http://minio.lan:9000/bucket"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def test_no_proxy_gives_no_advice() -> None:
    assert proxy_advice(LOCAL) is None
    assert delta_proxy_advice("s3://bucket/x", {"aws_endpoint_url": LOCAL}) is None


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize(
    "proxy", ["http://proxy:3128", "proxy:3128", "http://me:s3cret@proxy:3128"]
)
def test_the_advice_names_variable_proxy_and_server(
    monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    advice = proxy_advice(LOCAL)
    assert advice is not None
    assert advice.startswith(f"{variable} sets the proxy http://")
    assert "proxy:3128 for requests to minio.lan: " in advice
    assert "add minio.lan to NO_PROXY" in advice
    assert "s3cret" not in advice


def test_a_proxy_of_another_scheme_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert proxy_advice(LOCAL) is None
    assert proxy_advice(LOCAL.replace("http:", "https:")) is not None


@pytest.mark.parametrize("exempt", ["minio.lan", "lan", ".lan", "other, minio.lan", "*"])
def test_an_exempt_server_gives_no_advice(monkeypatch: pytest.MonkeyPatch, exempt: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", exempt)
    assert proxy_advice(LOCAL) is None


@pytest.mark.parametrize(
    ("url", "settings", "host"),
    [
        ("s3://bucket/x", {"aws_endpoint_url": "https://minio.lan"}, "minio.lan"),
        ("az://bucket/x", {"azure_endpoint": "https://azure.lan/a"}, "azure.lan"),
        ("gs://bucket/x", {"google_base_url": "https://google.lan"}, "google.lan"),
        ("s3://bucket/x", {"aws_region": "us-east-1"}, "s3.amazonaws.com"),
        ("gs://bucket/x", {}, "storage.googleapis.com"),
        ("abfss://c@a.dfs.core.windows.net/x", {}, "blob.core.windows.net"),
    ],
)
def test_the_server_of_delta_rs_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, settings: dict[str, str], host: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert f"add {host} to NO_PROXY" in (delta_proxy_advice(url, settings) or "")


@pytest.mark.parametrize("url", ["/data/store", "hdfs://namenode:8020/store"])
def test_delta_rs_uses_no_proxy_elsewhere(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert delta_proxy_advice(url, {}) is None
