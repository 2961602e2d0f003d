"""Fixtures: brokers, a cloud worker that behaves as a test wants, and workers as processes."""

import http.server
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

LIBRARY = pathlib.Path(__file__).parents[1]
NAME = "demo-edge-0d6f3c2a"
TOPIC = f"neptune/workers/{NAME}/info"
RELOAD = f"neptune/workers/{NAME}/reload"
TIMEOUT = 20.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(condition, what):
    """Wait until the condition holds, and return its value."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited for {what}")


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def connected(client_id, port):
    """Return a client of paho-mqtt 1.6 or 2 that is connected, and the queue of its messages."""
    from paho.mqtt import client as mqtt

    version = getattr(mqtt, "CallbackAPIVersion", None)
    client = mqtt.Client(client_id=client_id) if version is None else mqtt.Client(version.VERSION2, client_id=client_id)
    messages, is_connected = queue.Queue(), threading.Event()
    client.on_message = lambda _client, _data, message: messages.put(message)
    client.on_connect = lambda *_: is_connected.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert is_connected.wait(TIMEOUT)
    return client, messages


class Mosquitto:
    """Debian's broker on a free port. It can be stopped and started again on the same port."""

    def __init__(self, directory):
        self.port, self.directory, self.process = free_port(), directory, None
        self.configuration = directory / "mosquitto.conf"
        self.configuration.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\n", encoding="utf-8")
        self.start()

    @property
    def url(self):
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self):
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "mosquitto is missing: sudo apt-get install mosquitto"
        with open(self.directory / "mosquitto.log", "ab") as log:
            self.process = subprocess.Popen([program, "-c", str(self.configuration)], stdout=log, stderr=log)
        eventually(lambda: accepts(self.port), "mosquitto to listen")

    def stop(self):
        self.process.terminate()
        self.process.wait(TIMEOUT)

    def reports(self):
        """Return a queue of the decoded reports from now on."""
        client, messages = connected(f"observer-{time.monotonic_ns()}", self.port)
        subscribed = threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        client.subscribe("neptune/workers/+/info", qos=1)
        assert subscribed.wait(TIMEOUT)
        return Reports(lambda: json.loads(messages.get(timeout=TIMEOUT).payload))

    def publish_model(self, path):
        client, _ = connected("agent", self.port)
        client.publish(RELOAD, json.dumps({"path": path}), qos=1, retain=True).wait_for_publish(TIMEOUT)
        client.disconnect()


class Reports:
    """Reports in the order in which they arrived."""

    def __init__(self, receive):
        self.next = receive

    def until(self, condition, what):
        """Return the first report for which the condition holds."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            report = self.next()
            if condition(report):
                return report
        raise AssertionError(f"waited for {what}")


@pytest.fixture
def mosquitto(tmp_path):
    broker = Mosquitto(tmp_path)
    yield broker
    broker.stop()


class CloudWorker(http.server.ThreadingHTTPServer):
    """Answers according to `behaviour`: answer, error, silent, slow, or not JSON. Counts the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _CloudHandler)
        self.behaviour, self.requests, self.stopped = "answer", [], threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self):
        self.stopped.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """Print no traceback for a client that gave up."""


class _CloudHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        behaviour = self.server.behaviour
        if behaviour == "silent":
            self.server.stopped.wait()
        elif behaviour == "error":
            self.send_error(503)
        else:
            self.send_response(200)
            self.end_headers()
            while behaviour == "slow" and not self.server.stopped.wait(0.05):
                self.wfile.write(b" ")
            self.wfile.write(b"<html>" if behaviour == "not JSON" else json.dumps({"result": "big"}).encode())

    def log_message(self, *_):
        """Log no requests."""


@pytest.fixture
def cloud():
    server = CloudWorker()
    yield server
    server.stop()


class Process:
    """A program with the library, whose output is a file."""

    def __init__(self, directory, program, environment):
        self.script, self.log = directory / "worker.py", directory / "worker.log"
        self.script.write_text(program, encoding="utf-8")
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, [str(LIBRARY), os.environ.get("PYTHONPATH")])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "WORKER_NAME": NAME,
            "SERVICE_NAME": "demo",
            **environment,
        }
        with self.log.open("ab") as log:
            command = [sys.executable, str(self.script)]
            self.process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def output(self):
        return self.log.read_text(encoding="utf-8")

    def end(self, number):
        """Send a signal and return the exit code with the seconds that the process took to end."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT), time.monotonic() - began


@pytest.fixture
def start(tmp_path):
    processes = []

    def started(program, **environment):
        processes.append(Process(tmp_path, program, environment))
        return processes[-1]

    yield started
    for process in processes:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


class Sidecar:
    """The embedded broker of Neptune, which `neptune-edge sidecar` runs in a Pod, and the receiver of its reports."""

    PASSWORD = "0123456789abcdef"

    def __init__(self, program, directory):
        received = self.received = queue.Queue()

        class Receiver(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                """Log no requests."""

        self.receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        threading.Thread(target=self.receiver.serve_forever, args=(0.05,), daemon=True).start()
        self.port = free_port()
        environment = {
            "NEPTUNE_WORKER_NAME": NAME,
            "NEPTUNE_WORKER_PASSWORD": self.PASSWORD,
            "NEPTUNE_LISTEN": f"127.0.0.1:{self.port}",
            "NEPTUNE_REPORT_URL": f"http://127.0.0.1:{self.receiver.server_port}/token",
        }
        with open(directory / "sidecar.log", "wb") as log:
            self.process = subprocess.Popen([program, "sidecar"], env=environment, stdout=log, stderr=log)
        eventually(lambda: accepts(self.port), "the embedded broker to listen")
        self.reports = Reports(lambda: received.get(timeout=TIMEOUT))

    def url(self, password=PASSWORD):
        return f"mqtt://{NAME}:{password}@127.0.0.1:{self.port}"

    def stop(self):
        self.process.terminate()
        self.process.wait(TIMEOUT)
        self.receiver.shutdown()
        self.receiver.server_close()


@pytest.fixture
def sidecar(tmp_path):
    program = os.environ.get("NEPTUNE_EDGE")
    if not program:
        pytest.skip("NEPTUNE_EDGE does not name the built neptune-edge")
    broker = Sidecar(program, tmp_path)
    yield broker
    broker.stop()
