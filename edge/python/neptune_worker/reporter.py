"""Sends the reports of a worker over MQTT, or prints them without a broker, and receives requests to load a model."""

import datetime
import json
import logging
import threading
import time
from typing import Any, Callable, Optional

from neptune_worker.report import Counters, Models, message
from neptune_worker.settings import Address, Settings

PERIOD_SECONDS = 1.0

CONNECT_SECONDS = 1.5
"""How long the last report waits for a connection."""
PUBLISH_SECONDS = 1.5
"""How long it then waits for its acknowledgement."""
STORE_SECONDS = 1.0
"""How long a worker that ends by itself then waits: the agent stores an acknowledged report within a second."""

_log = logging.getLogger("neptune_worker")


def _now() -> str:
    now = datetime.datetime.now(datetime.timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Reporter:
    """Keeps the counters and reports them on connect and once per second. Without a connection the worker continues."""

    def __init__(self, settings: Settings, on_model: Callable[[str], None]) -> None:
        """Prepare the reports. `on_model` gets the path of each version that the agent requests."""
        self.counters = Counters()
        self.models = Models(settings.model_path)
        self.lock = threading.Lock()
        self._settings, self._on_model = settings, on_model
        self._started = _now()
        self._connected, self._wake, self._is_stopped = threading.Event(), threading.Event(), False
        self._thread = threading.Thread(target=self._repeat, name="neptune-reports", daemon=True)
        self._client: Any = None
        self._sent: Any = None
        self._printed: Optional[str] = None
        self._refusal = 0

    def start(self) -> None:
        """Connect in the background and report from now on."""
        broker = self._settings.broker
        if broker is not None:
            self._client = _client(self._settings.name, broker)
            self._client.on_connect = self._on_connect
            self._client.on_disconnect = self._on_disconnect
            self._client.on_message = self._on_message
            self._client.connect_async(broker.host, broker.port, keepalive=15)
            self._client.loop_start()
        self._thread.start()

    def report_soon(self) -> None:
        """Report without waiting for the rest of the second."""
        self._wake.set()

    def _report(self, status: str = "running") -> None:
        """Send the present totals, if the broker is connected. A later report contains them as well."""
        with self.lock:
            content = message(self._settings, self.counters, self.models, status, self._started, _now())
        if self._client is None:
            self._print(content)
        # The client repeats one that is not acknowledged yet: more of them would queue up.
        elif self._connected.is_set() and self._is_acknowledged():
            self._sent = self._client.publish(self._settings.info_topic, json.dumps(content), qos=1)

    def finish(self, status: str) -> None:
        """Send the last report and disconnect. Takes at most four seconds."""
        self._is_stopped = True
        self._wake.set()
        self._thread.join()
        self._sent = None
        if self._client is not None:
            self._connected.wait(CONNECT_SECONDS)
        self._report(status)
        if self._client is None:
            return
        end = time.monotonic() + PUBLISH_SECONDS
        while not self._is_acknowledged() and time.monotonic() < end:
            time.sleep(0.01)
        if self._sent is None or not self._is_acknowledged():
            # The thread of the client may wait for a connection, so it is left to the end of the process.
            _log.warning("broker did not acknowledge the last report of %s", self._settings.name)
            return
        if status != "running":
            time.sleep(STORE_SECONDS)
        self._client.disconnect()
        self._client.loop_stop()

    def _is_acknowledged(self) -> bool:
        """Whether no report waits for its acknowledgement."""
        try:
            return self._sent is None or bool(self._sent.is_published())
        except (ValueError, RuntimeError):
            # The client lost its connection before it took the report.
            return True

    def _print(self, content: Any) -> None:
        """Print a report that differs from the one before."""
        content.get("taskInfo", {}).pop("updateTime", None)
        text = json.dumps(content)
        if text != self._printed:
            self._printed = text
            print(text, flush=True)

    def _repeat(self) -> None:
        while not self._is_stopped:
            self._wake.wait(PERIOD_SECONDS)
            self._wake.clear()
            if not self._is_stopped:
                self._report()

    def _on_connect(self, client: Any, _userdata: Any, _flags: Any, code: Any, *_: Any) -> None:
        refusal = int(getattr(code, "value", code))
        if refusal:
            if refusal != self._refusal:
                _log.warning("broker refuses worker %s: %s; trying again", self._settings.name, code)
            self._refusal = refusal
            return
        self._refusal = 0
        if self._settings.reload_topic is not None:
            client.subscribe(self._settings.reload_topic, qos=1)
        self._connected.set()
        self._wake.set()

    def _on_disconnect(self, *_: Any) -> None:
        self._connected.clear()

    def _on_message(self, _client: Any, _userdata: Any, received: Any) -> None:
        try:
            path = json.loads(received.payload)["path"]
        except (ValueError, KeyError, TypeError):
            _log.warning("ignoring a request to load a model: it names no path")
            return
        if isinstance(path, str):
            self._on_model(path)


def _client(name: str, broker: Address) -> Any:
    """Return a client of paho-mqtt 1.6 or 2. It is imported here, as training programs run without it."""
    from paho.mqtt import client as mqtt

    if hasattr(mqtt, "CallbackAPIVersion"):
        client: Any = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv311)
    else:
        create: Any = mqtt.Client
        client = create(client_id=name, protocol=mqtt.MQTTv311)
    if broker.user is not None:
        client.username_pw_set(broker.user, broker.password)
    client.reconnect_delay_set(1, 8)
    return client
