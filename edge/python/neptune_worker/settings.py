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


class Settings:
    """What a worker of joint inference gets from Neptune. An empty variable counts as unset."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read the environment. Raises SettingError with the name of an invalid variable."""

        def optional(name: str) -> Optional[str]:
            return environ.get(name) or None

        self.name = optional("WORKER_NAME") or "local"
        self.service = optional("SERVICE_NAME") or "local"
        self.namespace = optional("NAMESPACE") or "default"
        self.model_path = optional("MODEL_URL")
        self.dataset_path = optional("DATASET_URL")
        self.parameters = _parameters(optional("PARAMETERS") or "")
        self.rule = optional("HEM_NAME") or "EdgeOnly"
        self.rule_parameters = optional("HEM_PARAMETERS") or ""
        self.cloud = _address("BIG_MODEL_URL", "http", optional("BIG_MODEL_URL"), 80)
        self.predict_path = f"/{self.service}/predict"
        """The path of the cloud worker's URL."""
        self.broker = _address("MQTT_URL", "mqtt", optional("MQTT_URL"), 1883)
        """Without a broker the worker reports to its standard output."""
        self.info_topic = optional("WORKER_INFO_TOPIC") or f"neptune/workers/{self.name}/info"
        self.reload_topic = optional("WORKER_RELOAD_TOPIC")
        self.bind = _bind(optional("BIG_MODEL_BIND_IP"), optional("BIG_MODEL_BIND_PORT"))
        """Where the cloud worker listens; None for an edge worker."""


def _parameters(text: str) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in key_values(text)}
    except ValueError as error:
        raise SettingError(f"PARAMETERS: {error}") from None


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


def _bind(host: Optional[str], port: Optional[str]) -> Optional[Address]:
    if port is None:
        return None
    if not port.isdecimal() or not 0 < int(port) <= 65535:
        raise SettingError(f"BIG_MODEL_BIND_PORT must be a port from 1 to 65535, not {port!r}")
    return Address(host or "0.0.0.0", int(port))
