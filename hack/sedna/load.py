"""Runs the samples of a schedule through one way of joint inference, and records each.

usage: load.py CONFIG SCHEDULE OUTPUT

Prints "ready", begins when it reads a line, prints "done", and ends with standard input. One sample (or batch) at a
time, as fast as possible or at `rate` per second; late samples are not dropped.
"""

import http.client
import json
import pathlib
import sys
import time

import numpy as np

from digits import Model, Schedule
from imitation import JointInference

EDGE, CLOUD, FALLBACK, NONE = range(4)


class Gateway:
    """A client of the Open Inference Protocol, with one connection."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=60)

    def infer(self, images):
        """The label and the side of each row."""
        pixels = {"name": "pixels", "shape": list(images.shape), "datatype": "FP32", "data": images.ravel().tolist()}
        body = json.dumps({"inputs": [pixels]})
        headers = {"content-type": "application/json"}
        self.connection.request("POST", "/v2/models/small/infer", body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            return [(NONE, -1)] * len(images)
        outputs = {output["name"]: output["data"] for output in json.loads(content)["outputs"]}
        decisions = answer.headers["x-neptune-decision"].split(",")
        decisions *= len(images) // len(decisions)
        sides = [{"easy": EDGE, "hard": CLOUD}.get(decision.strip(), FALLBACK) for decision in decisions]
        return list(zip(sides, outputs["label"]))


class Imitation:
    """A worker with the imitation of Sedna's library."""

    def __init__(self, config):
        arguments = [config[name] for name in ("threshold", "service", "cloud", "localController", "period")]
        self.worker = JointInference(Model(config["model"]), *arguments)

    def infer(self, images):
        """The label and the side of the only row."""
        hard, edge, cloud = self.worker.inference(images)
        if cloud is not None:
            return [(CLOUD, cloud[0]["label"])]
        return [(FALLBACK if hard else EDGE, edge.index(max(edge)))]


def run(way, schedule, rate, batch):
    """One row per sample: due, begin and end in seconds of the monotonic clock, side and label."""
    rows, began = np.empty((len(schedule.order), 5)), time.monotonic()
    for first in range(0, len(rows), batch):
        chosen = schedule.order[first : first + batch]
        due = time.monotonic()
        if rate:
            due = began + first / rate
            time.sleep(max(0, due - time.monotonic()))
        begin = time.monotonic()
        answers = way.infer(schedule.images[chosen])
        end = time.monotonic()
        for row, (side, label) in zip(rows[first : first + batch], answers):
            row[:] = due, begin, end, side, label
    return rows


def main():
    """Runs one way."""
    config = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    schedule = Schedule.load(sys.argv[2])
    way = Gateway(config["gateway"]) if "gateway" in config else Imitation(config)
    print("ready", flush=True)
    sys.stdin.readline()
    np.save(sys.argv[3], run(way, schedule, config["rate"], config["batch"]))
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
