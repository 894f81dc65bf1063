"""What s3fs was told about a bucket, in the words of Hadoop's ``s3a``, for Spark's own access.

The settings hold secrets. They go into the Hadoop configuration of a running Spark, for this bucket
alone; never into Spark's own, which is shown, logged and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

__all__ = ["s3a_settings"]

_HADOOP = "org.apache.hadoop.fs.s3a"


def s3a_settings(bucket: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of ``s3a`` for a bucket; none for what the options leave open."""
    client = options.get("client_kwargs") or {}
    settings = _credentials(options)
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    if endpoint:
        settings["endpoint"] = str(endpoint)
        settings["connection.ssl.enabled"] = str(urlsplit(endpoint).scheme != "http").lower()
        # Servers other than Amazon's mostly know buckets by path alone.
        settings["path.style.access"] = "true"
    region = client.get("region_name")
    if region or endpoint:
        settings["endpoint.region"] = str(region or "us-east-1")
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def _credentials(options: Mapping[str, Any]) -> dict[str, str]:
    """Return who asks; the provider too, or keys of the environment would mix with these."""
    if options.get("anon"):
        return {"aws.credentials.provider": f"{_HADOOP}.AnonymousAWSCredentialsProvider"}
    key = options.get("key") or options.get("username")
    secret = options.get("secret") or options.get("password")
    if not (key and secret):
        provider = f"{_HADOOP}.auth.ProfileAWSCredentialsProvider"
        name = options.get("profile")
        return {"aws.credentials.provider": provider, "auth.profile.name": name} if name else {}
    settings = {"access.key": str(key), "secret.key": str(secret)}
    if options.get("token"):
        settings["session.token"] = str(options["token"])
        settings["aws.credentials.provider"] = f"{_HADOOP}.TemporaryAWSCredentialsProvider"
    else:
        settings["aws.credentials.provider"] = f"{_HADOOP}.SimpleAWSCredentialsProvider"
    return settings
