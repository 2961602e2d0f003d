"""The environment of both workers, and the edge worker's reports over MQTT."""

import datetime
import json
import os
import signal
import threading
import urllib.parse

import paho.mqtt.client as mqtt


def setting(name, default=None):
    """Return an environment variable. An empty one counts as unset."""
    value = os.environ.get(name) or default
    if value is None:
        raise SystemExit(f"the environment variable {name} is not set")
    return value


def stop_event():
    """Return an event that SIGTERM and SIGINT set: the first process of a container has no default handlers."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _now():
    now = datetime.datetime.now(datetime.timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _client(name):
    """Return a client of paho-mqtt 1.x or 2.x."""
    if hasattr(mqtt, "CallbackAPIVersion"):
        return mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name)
    return mqtt.Client(client_id=name)


class Reporter:
    """Counts, and reports on connect and every LC_PERIOD seconds. The worker continues while the broker is down."""

    def __init__(self):
        """Start counting from zero and connecting in the background."""
        self.name = setting("WORKER_NAME")
        self.topic = setting("WORKER_INFO_TOPIC", f"neptune/workers/{self.name}/info")
        self.inferred = self.hard = self.fallbacks = 0
        self.started = self.updated = _now()
        self.lock = threading.Lock()
        self.stopped, self.connected = threading.Event(), threading.Event()
        self.client = _client(f"{self.name}-{self.started}")
        self.client.on_connect = self._on_connect
        broker = urllib.parse.urlsplit(setting("MQTT_URL", "mqtt://127.0.0.1:1883"))
        if broker.scheme != "mqtt" or not broker.hostname:
            raise SystemExit("MQTT_URL must be mqtt://[user:password@]host[:port]")
        if broker.username:
            user, password = (urllib.parse.unquote(part or "") for part in (broker.username, broker.password))
            self.client.username_pw_set(user, password)
        self.client.connect_async(broker.hostname, broker.port or 1883)
        self.client.loop_start()
        self.period = float(setting("LC_PERIOD", "1"))
        threading.Thread(target=self._repeat, daemon=True).start()

    def _on_connect(self, *_):
        self.connected.set()
        self.report()

    def count(self, is_hard, is_answered):
        """Count a frame, and whether the cloud worker answered a hard one."""
        with self.lock:
            self.inferred += 1
            self.hard += is_hard and is_answered
            self.fallbacks += is_hard and not is_answered
            self.updated = _now()

    def report(self, status="running"):
        """Publish the totals if the broker is connected; a later report contains them as well."""
        with self.lock:
            info = {
                "name": self.name,
                "namespace": setting("NAMESPACE", "default"),
                "ownerName": setting("SERVICE_NAME"),
                "ownerKind": "jointinferenceservice",
                "kind": "inference",
                "status": status,
                "taskInfo": {
                    "inferenceNumber": self.inferred,
                    "hardExampleNumber": self.hard,
                    "fallbackNumber": self.fallbacks,
                    "uploadCloudRatio": self.hard / self.inferred if self.inferred else 0.0,
                    "startTime": self.started,
                    "updateTime": self.updated,
                },
            }
        if self.client.is_connected():
            return self.client.publish(self.topic, json.dumps(info), qos=1)
        return None

    def _repeat(self):
        while not self.stopped.wait(self.period):
            self.report()

    def finish(self, status="running"):
        """Send the last report and disconnect. Takes at most four seconds."""
        self.stopped.set()
        self.connected.wait(2)
        sent = self.report(status)
        if sent and sent.rc == mqtt.MQTT_ERR_SUCCESS:
            sent.wait_for_publish(2)
        self.client.disconnect()
        self.client.loop_stop()
