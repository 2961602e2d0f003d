"""Workers as programs: decisions, reports over real brokers, signals, reloads."""

import json
import signal

import pytest
from conftest import NAME, RELOAD, TIMEOUT, TOPIC, eventually
from neptune_worker import SettingError, Worker

LOOP = """
from neptune_worker import Worker
with Worker() as w:
    print("begin", flush=True)
    while not w.wait(0.02):
        w.count(hard=False)
print("end with", w._reporter.counters.inferred, flush=True)
"""


def inferred(report):
    return report["taskInfo"]["inferenceNumber"]


def with_rule(name, cloud=None, **parameters):
    pairs = [{"key": key, "value": value} for key, value in parameters.items()]
    return {
        "SERVICE_NAME": "demo",
        "HEM_NAME": name,
        "HEM_PARAMETERS": json.dumps(pairs),
        "BIG_MODEL_URL": cloud.url if cloud else "",
    }


def counts(worker):
    counters = worker._reporter.counters
    return counters.inferred, counters.hard, counters.fallbacks


def test_easy_sample_stays_at_the_edge(cloud):
    worker = Worker(with_rule("CrossEntropy", cloud))
    answer = worker.infer([1], "small", scores=[1.0, 0.0])
    assert (answer.result, answer.source, answer.is_hard, answer.confidence) == ("small", "edge", False, 1.0)
    assert (answer.edge, answer.cloud) == ("small", None)
    assert cloud.requests == []
    assert counts(worker) == (1, 0, 0)


def test_hard_sample_is_answered_by_the_cloud(cloud):
    worker = Worker(with_rule("CrossEntropy", cloud))
    answer = worker.infer([1], "small", scores=[0.5, 0.5])
    assert (answer.result, answer.source, answer.edge, answer.cloud) == ("big", "cloud", "small", "big")
    assert cloud.requests == [("/demo/predict", {"data": [1]})]
    assert counts(worker) == (1, 1, 0)


def test_hard_sample_without_an_answer_is_a_fallback(cloud):
    cloud.behaviour = "error"
    for worker in (Worker(with_rule("IBT", cloud)), Worker(with_rule("IBT"))):
        answer = worker.infer([1], "small", boxes=[[0, 0, 8, 8, 0.4, 1]])
        assert (answer.result, answer.source, answer.is_hard, answer.cloud) == ("small", "fallback", True, None)
        assert counts(worker) == (1, 0, 1)


def test_sample_that_cannot_be_judged_is_easy(cloud):
    worker = Worker(with_rule("IBT", cloud, threshold_img="1"))
    for boxes in ([], [[0, 0, 8, 8, float("nan"), 1]], None):
        answer = worker.infer([1], "small", boxes=boxes)
        assert (answer.source, answer.confidence) == ("edge", None)
    assert cloud.requests == []
    assert counts(worker) == (3, 0, 0)


def test_confidence_of_the_program_is_a_signal():
    worker = Worker(with_rule("MaxProbability", threshold="0.7"))
    assert worker.is_hard(confidence=0.69)
    assert not worker.is_hard(confidence=0.7)
    assert counts(worker) == (0, 0, 0)


def test_rules_without_a_signal_ignore_it():
    assert Worker(with_rule("CloudOnly")).is_hard()
    assert Worker(with_rule("CloudOnly")).is_hard(scores=[1.0, 0.0])
    assert not Worker({}).is_hard(scores=[0.5, 0.5])


def test_wrong_signals_are_errors_of_the_program():
    worker = Worker(with_rule("IBT"))
    with pytest.raises(TypeError, match="IBT reads boxes, not scores"):
        worker.infer(1, 1, scores=[0.5])
    with pytest.raises(TypeError, match="one signal, not scores and confidence"):
        worker.infer(1, 1, scores=[0.5], confidence=0.5)
    with pytest.raises(SettingError, match="unknown hard example algorithm 'Mine'"):
        Worker(with_rule("Mine")).is_hard(confidence=0.5)


def test_program_with_a_rule_of_its_own_asks_and_counts(cloud):
    worker = Worker(with_rule("Mine", cloud))
    answered = worker.ask_cloud([1]) is not None
    worker.count(hard=True, answered=answered)
    assert counts(worker) == (1, 1, 0)


def test_missing_paths_are_named():
    with pytest.raises(SettingError, match="MODEL_URL is not set"):
        _ = Worker({}).model_path
    with pytest.raises(SettingError, match="DATASET_URL is not set"):
        _ = Worker({}).dataset_path


def test_metrics_are_checked_and_reported_for_the_path():
    worker = Worker({"MODEL_URL": "/models/m/1.json"})
    worker.report_metrics({"accuracy": 0.93, "labels": "yes,no"})
    worker.report_metrics({"accuracy": 0.94})
    worker.report_metrics({"recall": 1}, model="other")
    with pytest.raises(ValueError, match="metric 'loss' is nan"):
        worker.report_metrics({"loss": float("nan")})
    assert worker._reporter.models.output() == {
        "models": [
            {"url": "/models/m/1.json", "metrics": {"accuracy": 0.94, "labels": "yes,no"}},
            {"name": "other", "metrics": {"recall": 1}},
        ]
    }


def test_report_has_the_documented_form(mosquitto, start):
    reports = mosquitto.reports()
    start(LOOP, MQTT_URL=mosquitto.url, NAMESPACE="team")
    report = reports.until(lambda report: inferred(report) > 0, "a count")
    task = report.pop("taskInfo")
    assert report == {
        "name": NAME,
        "namespace": "team",
        "ownerName": "demo",
        "ownerKind": "jointinferenceservice",
        "kind": "inference",
        "status": "running",
    }
    assert (task["hardExampleNumber"], task["fallbackNumber"], task["uploadCloudRatio"]) == (0, 0, 0.0)
    assert task["startTime"].endswith("Z") and task["updateTime"] >= task["startTime"]


def test_sigterm_sends_the_last_counts_within_four_seconds(mosquitto, start):
    reports = mosquitto.reports()
    worker = start(LOOP, MQTT_URL=mosquitto.url)
    reports.until(lambda report: inferred(report) > 0, "a count")
    code, seconds = worker.end(signal.SIGTERM)
    assert (code, seconds < 4) == (0, True)
    final = int(worker.output().split()[-1])
    last = reports.until(lambda report: inferred(report) == final, "the last report")
    assert last["status"] == "running"


def test_sigterm_without_a_broker_ends_within_four_seconds(start):
    worker = start(LOOP, MQTT_URL="mqtt://127.0.0.1:9")
    eventually(lambda: "begin" in worker.output(), "the worker to begin")
    code, seconds = worker.end(signal.SIGTERM)
    assert (code, seconds < 4) == (0, True)
    assert "did not acknowledge the last report" in worker.output()


def test_sigterm_during_a_call_of_a_silent_cloud_ends_within_four_seconds(mosquitto, start, cloud):
    cloud.behaviour = "silent"
    reports = mosquitto.reports()
    program = """
from neptune_worker import Worker
with Worker() as w:
    while not w.stopping:
        w.infer([1], "small")
"""
    worker = start(program, MQTT_URL=mosquitto.url, HEM_NAME="CloudOnly", BIG_MODEL_URL=cloud.url)
    eventually(lambda: cloud.requests, "a call")
    code, seconds = worker.end(signal.SIGTERM)
    assert (code, seconds < 4) == (0, True)
    reports.until(lambda report: report["taskInfo"]["fallbackNumber"] > 0, "the last report")


def test_counts_of_an_outage_arrive_when_the_broker_is_back(mosquitto, start):
    reports = mosquitto.reports()
    start(LOOP, MQTT_URL=mosquitto.url)
    before = reports.until(lambda report: inferred(report) > 0, "a count")
    mosquitto.stop()
    mosquitto.start()
    after = mosquitto.reports().until(lambda report: inferred(report) > inferred(before), "a later count")
    assert after["taskInfo"]["startTime"] == before["taskInfo"]["startTime"]


def test_killed_worker_begins_another_run(mosquitto, start):
    reports = mosquitto.reports()
    worker = start(LOOP, MQTT_URL=mosquitto.url)
    before = reports.until(lambda report: inferred(report) > 20, "counts")
    worker.end(signal.SIGKILL)
    start(LOOP, MQTT_URL=mosquitto.url)
    other = before["taskInfo"]["startTime"]
    after = reports.until(lambda report: report["taskInfo"]["startTime"] != other, "another run")
    assert inferred(after) < inferred(before)
    assert after["taskInfo"]["startTime"] > other


@pytest.mark.parametrize(("ending", "status", "code"), [("", "completed", 0), ("1 / 0", "failed", 1)])
def test_status_names_how_the_worker_ended(mosquitto, start, ending, status, code):
    reports = mosquitto.reports()
    program = (
        f"from neptune_worker import Worker\nwith Worker() as w:\n    w.count(hard=True)\n    {ending or 'pass'}\n"
    )
    worker = start(program, MQTT_URL=mosquitto.url)
    last = reports.until(lambda report: report["status"] == status, status)
    assert (inferred(last), last["taskInfo"]["fallbackNumber"]) == (1, 1)
    assert worker.process.wait(TIMEOUT) == code


RELOADING = """
import pathlib
from neptune_worker import Worker
with Worker() as w:
    def load(path):
        w.report_metrics({"accuracy": 0.1 if "bad" in path else 0.9})
        if "bad" in path:
            raise OSError("cannot read " + path)
        print("loaded", path, flush=True)
    w.report_metrics({"accuracy": 0.5})
    w.on_reload(load)
    while not w.wait(0.05):
        pass
    print("model", w.model_path, flush=True)
"""


def urls(report):
    return [model.get("url") for model in report.get("output", {}).get("models", [])]


def test_new_version_is_loaded_and_confirmed_and_a_bad_one_is_not(mosquitto, start):
    environment = {"MQTT_URL": mosquitto.url, "WORKER_RELOAD_TOPIC": RELOAD, "MODEL_URL": "/m/1"}
    mosquitto.publish_model("/m/1")
    reports = mosquitto.reports()
    worker = start(RELOADING, **environment)
    first = reports.until(lambda report: urls(report) == ["/m/1"], "the first version")
    assert first["output"]["models"][0]["metrics"] == {"accuracy": 0.5}
    mosquitto.publish_model("/m/bad")
    eventually(lambda: "keeping the previous version" in worker.output(), "the bad version to be tried")
    mosquitto.publish_model("/m/2")
    second = reports.until(lambda report: urls(report) != ["/m/1"], "the second version")
    assert second["output"]["models"] == [{"url": "/m/2", "metrics": {"accuracy": 0.9}}]
    worker.end(signal.SIGTERM)
    assert "loaded /m/1" not in worker.output()
    assert worker.output().count("loaded /m/2") == 1
    assert "model /m/2" in worker.output()


def test_embedded_broker_accepts_the_login_and_the_last_report(sidecar, start):
    worker = start(LOOP, MQTT_URL=sidecar.url(), WORKER_INFO_TOPIC=TOPIC)
    sidecar.reports.until(lambda report: inferred(report) > 0, "a count")
    code, seconds = worker.end(signal.SIGTERM)
    assert (code, seconds < 4) == (0, True)
    final = int(worker.output().split()[-1])
    last = sidecar.reports.until(lambda report: inferred(report) == final, "the last report")
    assert last["status"] == "running"


def test_embedded_broker_refuses_a_wrong_password_and_the_log_names_it(sidecar, start):
    worker = start(LOOP, MQTT_URL=sidecar.url("wrong"))
    eventually(lambda: f"broker refuses worker {NAME}" in worker.output(), "the refusal")
    worker.end(signal.SIGTERM)
    assert sidecar.received.empty()


def test_reports_of_a_worker_without_a_broker_are_printed_when_they_change(start):
    program = """
from neptune_worker import Worker
with Worker() as w:
    w.count(hard=False)
    w.wait(2.5)
"""
    worker = start(program)
    assert worker.process.wait(TIMEOUT) == 0
    lines = [json.loads(line) for line in worker.output().splitlines()]
    assert [line["status"] for line in lines] == ["running", "completed"]
    assert lines[0]["taskInfo"]["inferenceNumber"] == 1
