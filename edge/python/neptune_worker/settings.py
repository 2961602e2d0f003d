"""The environment of a worker as typed values. Pure: the caller passes the variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional
from urllib.parse import unquote, urlsplit

from neptune_worker.rules import key_values


class SettingError(ValueError):
    """An environment variable that is missing or has an invalid value; the text names it."""


@dataclass(frozen=True)
class Address:
    """Where an HTTP server or a broker is."""

    host: str
    port: int
    user: Optional[str] = None
    password: Optional[str] = None


@dataclass(frozen=True)
class Settings:
    """What a worker of joint inference gets from Neptune. An empty variable counts as unset."""

    name: str
    service: str
    namespace: str
    model_path: Optional[str]
    dataset_path: Optional[str]
    parameters: dict[str, str]
    rule: str
    rule_parameters: str
    cloud: Optional[Address]
    broker: Optional[Address]
    info_topic: str
    reload_topic: Optional[str]
    bind: Optional[Address]
    """Where the cloud worker listens; None for an edge worker."""

    @property
    def predict_path(self) -> str:
        """The path of the cloud worker's URL."""
        return f"/{self.service}/predict"


def read(environ: Mapping[str, str]) -> Settings:
    """Read the environment. Without a broker the worker reports to its standard output."""

    def optional(name: str) -> Optional[str]:
        return environ.get(name) or None

    name = optional("WORKER_NAME") or "local"
    bind_port = optional("BIG_MODEL_BIND_PORT")
    return Settings(
        name=name,
        service=optional("SERVICE_NAME") or "local",
        namespace=optional("NAMESPACE") or "default",
        model_path=optional("MODEL_URL"),
        dataset_path=optional("DATASET_URL"),
        parameters=_parameters(optional("PARAMETERS") or ""),
        rule=optional("HEM_NAME") or "EdgeOnly",
        rule_parameters=optional("HEM_PARAMETERS") or "",
        cloud=_cloud(environ),
        broker=_address("MQTT_URL", "mqtt", optional("MQTT_URL"), 1883),
        info_topic=optional("WORKER_INFO_TOPIC") or f"neptune/workers/{name}/info",
        reload_topic=optional("WORKER_RELOAD_TOPIC"),
        bind=Address(optional("BIG_MODEL_BIND_IP") or "0.0.0.0", _port("BIG_MODEL_BIND_PORT", bind_port))
        if bind_port
        else None,
    )


def _parameters(text: str) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in key_values(text)}
    except ValueError as error:
        raise SettingError(f"PARAMETERS: {error}") from None


def _cloud(environ: Mapping[str, str]) -> Optional[Address]:
    host = environ.get("BIG_MODEL_IP")
    if environ.get("BIG_MODEL_URL") or not host:
        return _address("BIG_MODEL_URL", "http", environ.get("BIG_MODEL_URL") or None, 80)
    return Address(host, _port("BIG_MODEL_PORT", environ.get("BIG_MODEL_PORT") or "5000"))


def _address(variable: str, scheme: str, url: Optional[str], default_port: int) -> Optional[Address]:
    if url is None:
        return None
    parts = urlsplit(url)
    try:
        port = parts.port or default_port
    except ValueError:
        port = 0
    if parts.scheme != scheme or not parts.hostname or not port:
        raise SettingError(f"{variable} must be {scheme}://[USER:PASSWORD@]HOST[:PORT]")
    user = unquote(parts.username) if parts.username else None
    return Address(parts.hostname, port, user, unquote(parts.password or "") if user else None)


def _port(variable: str, text: Optional[str]) -> int:
    if text is None or not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise SettingError(f"{variable} must be a port from 0 to 65535, not {text!r}")
    return int(text)
