"""Compares joint inference by the gateway with an imitation of KubeEdge's Sedna, in one run on this machine.

usage: bench.py ROOT GATEWAY MODEL_SERVER DIGITS ROUNDS

hack/bench-sedna.sh starts it, and states what differs between the two ways.
"""

import pathlib
import signal
import sys
import tempfile
import time

import numpy as np

from digits import Model, Schedule, threshold_for
from tables import print_outage, print_speed, print_uploads
from ways import Gateway, Imitation, ImitationWithRust, Way

RATIO = 0.2
PHASES = (("clean", 3000), ("noisy", 3000), ("clean", 3000))
WAYS = {
    "gateway": Gateway,
    "gateway, 32 rows": lambda folder, paths: Gateway(folder, paths, batch=32),
    "imitation": Imitation,
    "imitation, cloud in Rust": ImitationWithRust,
}
RATE = 50
BEFORE_SECONDS, OUTAGE_SECONDS, AFTER_SECONDS = 5, 20, 20


def measure(folder, paths, schedule, settings, rounds):
    """Runs all samples through each way, in an order that changes; returns rows, reported ratios and memory by way."""
    rows, reported, memory = ({way: [] for way in WAYS} for _ in range(3))
    names = list(WAYS)
    for number in range(rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            with WAYS[name](folder / f"{name.replace(' ', '-')}-{number}", paths) as way:
                way.start_all(folder / "schedule.npz", settings)
                way.begin()
                rows[name].append(way.rows())
                reported[name].append(way.reported_ratio(len(schedule.order)))
                memory[name] = way.memory()
        print(f"round {number + 1} of {rounds} done", flush=True)
    return rows, reported, memory


def outage(folder, paths, settings, stop, start):
    """Takes the cloud away from both ways at the same time; returns rows, begin and end of the outage by way."""
    found = {}
    with Gateway(folder / "gateway", paths) as gateway, Imitation(folder / "imitation", paths) as imitation:
        ways = {"gateway": gateway, "imitation": imitation}
        for way in ways.values():
            way.start_all(folder / "schedule.npz", {**settings, "rate": RATE})
        for way in ways.values():
            way.begin()
        time.sleep(BEFORE_SECONDS)
        begins = {}
        for name, way in ways.items():
            begins[name] = time.monotonic()
            stop(way)
        time.sleep(OUTAGE_SECONDS)
        ends = {}
        for name, way in ways.items():
            start(way)
            ends[name] = time.monotonic()
        for name, way in ways.items():
            found[name] = way.rows(), begins[name], ends[name]
    return found


def main():
    """Measures and prints."""
    # Leaves the contexts, which end all processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    root, gateway, model_server, digits, rounds = sys.argv[1:]
    paths = {"root": pathlib.Path(root), "gateway": gateway, "model_server": model_server, "digits": digits}
    csv = paths["root"] / "examples/digits/data/test.csv"
    threshold = threshold_for(Model(paths["root"] / "examples/digits/models/small.json"), csv, RATIO)
    settings = {"ratio": RATIO, "threshold": threshold, "rate": 0}
    with tempfile.TemporaryDirectory(prefix="neptune-sedna-") as folder:
        folder = pathlib.Path(folder)
        schedule = Schedule.draw(csv, PHASES)
        schedule.save(folder / "schedule.npz")
        rows, reported, memory = measure(folder, paths, schedule, settings, int(rounds))
        labels = {name: np.array([of_round[:, 4] for of_round in rows[name]]) for name in rows}
        assert (labels["imitation"] == labels["imitation, cloud in Rust"]).all(), "the same models answer differently"
        outages = {}
        for title, stop, start in (
            ("The cloud refuses connections", Way.stop_cloud, lambda way: way.start_cloud()),
            ("The cloud accepts connections and is silent", Way.pause_cloud, Way.resume_cloud),
        ):
            place = folder / str(len(outages))
            place.mkdir()
            number = RATE * (BEFORE_SECONDS + OUTAGE_SECONDS + AFTER_SECONDS)
            Schedule.draw(csv, (("clean", number),)).save(place / "schedule.npz")
            print(f"outage {len(outages) + 1} of 2", flush=True)
            outages[title] = outage(place, paths, settings, stop, start)
        print_speed(rows, memory)
        print_uploads(rows, reported, schedule, PHASES, RATIO)
        for title, found in outages.items():
            print_outage(title, found, RATE)


if __name__ == "__main__":
    main()
