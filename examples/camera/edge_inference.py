"""The edge worker: looks for changes in the pictures of a camera; frames of which it is unsure go to the cloud."""

import base64
import json
import pathlib

import camera
from neptune_worker import Worker


def main():
    """Run until SIGTERM. A camera that ends is opened again; without frames nothing is counted (NoSamples)."""
    place, name = camera.source(camera.environment())
    with Worker() as worker:
        settings = json.loads(pathlib.Path(worker.model_path).read_text(encoding="utf-8"))
        motion = camera.Motion(settings["limit"])
        while not worker.wait(0):
            try:
                watch(worker, motion, place)
                problem = "it ended"
            except (OSError, ValueError) as error:
                problem = type(error).__name__
            print(f"{name}: {problem}; opening it again", flush=True)
            worker.wait(1.0)


def watch(worker, motion, place):
    """Count the frames of one connection."""
    changes = 0
    for number, frame in enumerate(camera.frames(place), 1):
        if worker.wait(1.0 / float(worker.parameters.get("rate", "10"))):
            return
        p = motion.probability(frame)
        picture = base64.b64encode(frame).decode()
        answer = worker.infer(picture, p > 0.5, scores=[p, 1 - p])
        changes += bool(answer.result)
        if number % 100 == 0:
            print(f"{number} frames, {changes} changes", flush=True)


if __name__ == "__main__":
    main()
