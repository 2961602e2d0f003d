"""The cloud worker's server."""

import http.client
import json
import signal
import threading

import pytest
from conftest import TIMEOUT, accepts, eventually, free_port
from neptune_worker.server import Server
from neptune_worker.settings import Address


def predict(data):
    if data == "bad":
        raise ValueError("brightness must be 0..1")
    if data == "broken":
        raise RuntimeError("secret")
    return {1, 2} if data == "set" else [data, data]


@pytest.fixture
def server():
    server = Server(Address("127.0.0.1", 0), "/demo/predict", predict, threads=2)
    server.start()
    yield server
    server.stop()


def call(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return response.status, content


def test_data_is_answered_with_the_result(server):
    assert call(server.server_port, "POST", "/demo/predict", '{"data": [1]}') == (200, {"result": [[1], [1]]})
    assert call(server.server_port, "GET", "/healthz") == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "problem"),
    [
        ("GET", "/", None, 404, "serves /healthz and POST /demo/predict"),
        ("POST", "/other/predict", '{"data": 1}', 404, "serves POST /demo/predict"),
        ("POST", "/demo/predict", "{", 400, "JSON object"),
        ("POST", "/demo/predict", "[1]", 400, "JSON object"),
        ("POST", "/demo/predict", '{"data": "bad"}', 400, "brightness must be 0..1"),
        ("POST", "/demo/predict", '{"data": "broken"}', 500, "the log of the worker has the reason"),
        ("POST", "/demo/predict", '{"data": "set"}', 500, "the log of the worker has the reason"),
    ],
)
def test_refusals_name_the_problem(server, method, path, body, status, problem):
    answer = call(server.server_port, method, path, body)
    assert answer[0] == status
    assert problem in answer[1]["error"]
    assert "secret" not in answer[1]["error"]


def test_body_above_the_limit_is_refused_before_it_is_read(server):
    headers = {"Content-Length": str(32 * 1024 * 1024 + 1)}
    status, content = call(server.server_port, "POST", "/demo/predict", b"", headers)
    assert (status, content["error"]) == (413, "the body has more than 33554432 bytes")


def test_body_without_a_length_is_refused(server):
    headers = {"Transfer-Encoding": "chunked"}
    assert call(server.server_port, "POST", "/demo/predict", iter([b"{}"]), headers)[0] == 411


def test_connection_is_used_again(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=TIMEOUT)
    for _ in range(3):
        connection.request("POST", "/demo/predict", '{"data": 1}')
        assert json.loads(connection.getresponse().read()) == {"result": [1, 1]}
        open_socket = connection.sock
    assert connection.sock is open_socket
    connection.close()


def test_predict_runs_in_a_limited_number_of_threads():
    running, most, release = [0], [0], threading.Event()
    lock, arrived = threading.Lock(), threading.Semaphore(0)

    def slow(data):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        arrived.release()
        release.wait(TIMEOUT)
        with lock:
            running[0] -= 1
        return data

    server = Server(Address("127.0.0.1", 0), "/p", slow, threads=2)
    server.start()
    callers = [threading.Thread(target=call, args=(server.server_port, "POST", "/p", '{"data": 1}')) for _ in range(6)]
    for caller in callers:
        caller.start()
    assert arrived.acquire(timeout=TIMEOUT) and arrived.acquire(timeout=TIMEOUT)
    eventually(lambda: server._pending == 6, "all requests to arrive")
    release.set()
    for caller in callers:
        caller.join()
    server.stop()
    assert most[0] == 2


CLOUD = """
import time
from neptune_worker import Worker
def predict(data):
    print("begin", flush=True)
    time.sleep(1)
    return data
with Worker() as w:
    w.report_metrics({"accuracy": 0.97})
    w.serve(predict)
"""


def test_sigterm_answers_the_request_in_progress_and_refuses_others(start, mosquitto):
    reports, port = mosquitto.reports(), free_port()
    bind = {"BIG_MODEL_BIND_IP": "127.0.0.1", "BIG_MODEL_BIND_PORT": str(port)}
    worker = start(CLOUD, MQTT_URL=mosquitto.url, MODEL_URL="/m/1", **bind)
    report = reports.until(lambda report: "output" in report, "metrics")
    assert "taskInfo" not in report, "a cloud worker counts nothing"
    assert report["output"]["models"][0]["metrics"] == {"accuracy": 0.97}
    eventually(lambda: accepts(port), "the server to listen")
    answers = []
    caller = threading.Thread(target=lambda: answers.append(call(port, "POST", "/demo/predict", '{"data": 1}')))
    caller.start()
    eventually(lambda: "begin" in worker.output(), "the request to arrive")
    code, seconds = worker.end(signal.SIGTERM)
    caller.join(TIMEOUT)
    assert answers == [(200, {"result": 1})]
    assert (code, seconds < 8) == (0, True)
    assert not accepts(port)
