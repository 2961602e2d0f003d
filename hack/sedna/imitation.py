"""Joint inference in the worker, as KubeEdge's Sedna does it: an imitation, because its library is on no registry.

Written from the behaviour of the library (v0.7), not from its code:

- The worker has the edge model in its process, infers one sample at a time, and applies the rule to the result.
- A hard sample is one HTTP call with a connection of its own and without a timeout. A failed call is made five times,
  three seconds apart; then the edge's result is used. Nothing remembers that the cloud did not answer.
- Counters: every sample counts once. A hard sample counts again, and as hard, also if the call failed.
- The counters are sent to the node's agent (LocalController) every LC_PERIOD seconds, if they changed, by the same HTTP
  function. A report that fails ends the reports.

Left out, in favour of the imitation: log lines per sample, copies of results, and the other imports of the library.
"""

import math
import threading
import time

import requests

ATTEMPTS = 5
PAUSE_SECONDS = 3


class NoAnswer(Exception):
    """All attempts failed."""


def post(url, body):
    """Sends JSON; returns the JSON of an answer with 200."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        try:
            answer = requests.post(url, json=body)  # pylint: disable=missing-timeout
            if answer.status_code == 200:
                return answer.json()
        except requests.exceptions.RequestException:
            pass
    raise NoAnswer(f"{url} did not answer {ATTEMPTS} times")


def is_hard(probabilities, threshold):
    """The rule CrossEntropy. It raises for a probability of 0, as the library does; the models here have none."""
    if not probabilities or not all(0 <= p <= 1 for p in probabilities):
        return False
    entropy = sum(p * math.log(p) for p in probabilities)
    return 1 + entropy / math.log(len(probabilities)) < threshold


class Reporter(threading.Thread):
    """Counts, and sends the counters."""

    def __init__(self, url, owner, period):
        super().__init__(daemon=True)
        self.url, self.owner, self.period = url, owner, period
        self.lock = threading.Lock()
        self.inferences = self.hard = self.changes = 0

    def count(self, is_upload):
        """One inference; of the edge, or of both sides together."""
        with self.lock:
            self.inferences += 1
            self.hard += is_upload
            self.changes += 1

    def run(self):
        while True:
            start = time.strftime("%Y-%m-%d %H:%M:%S")
            time.sleep(self.period)
            if not self.changes:
                continue
            info = {
                "startTime": start,
                "updateTime": time.strftime("%Y-%m-%d %H:%M:%S"),
                "inferenceNumber": self.inferences,
                "hardExampleNumber": self.hard,
                "uploadCloudRatio": self.hard / self.inferences,
            }
            post(self.url, {**self.owner, "ownerInfo": info})
            self.changes = 0


class JointInference:
    """One worker. `model` infers in this process."""

    def __init__(self, model, threshold, service, cloud, local_controller, period):
        self.model, self.threshold = model, threshold
        self.url = f"http://{cloud}/{service}/predict"
        worker = f"{service}-edge"
        owner = {"name": worker, "namespace": "default", "ownerName": service, "kind": "inference", "results": []}
        owner["ownerKind"] = "jointinferenceservice"
        self.reporter = Reporter(f"http://{local_controller}/sedna/workers/{worker}/info", owner, period)
        self.reporter.start()

    def inference(self, image):
        """Whether the sample is hard, the edge's probabilities, and the cloud's result or None."""
        edge = self.model.probabilities(image)[0].tolist()
        self.reporter.count(False)
        if not is_hard(edge, self.threshold):
            return False, edge, None
        cloud = None
        try:
            cloud = post(self.url, {"data": image.tolist()})["result"]
        except NoAnswer:
            pass
        self.reporter.count(True)
        return True, edge, cloud
