#!/usr/bin/env python3
"""Train the middle model: a softmax over all 64 pixels, between the small and the big model of ../digits.

    python3 examples/three-tiers/train.py

needs numpy only, and writes medium.json next to this file. There is no random number; other versions of numpy may round
differently. The samples are those of ../digits/data.
"""

import json
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 400
RATE = 4.0


def samples(name):
    """Return pixels from 0 to 1 and labels."""
    rows = np.loadtxt(HERE.parent / "digits" / "data" / name, delimiter=",")
    return rows[:, :64] / 16.0, rows[:, 64].astype(int)


def softmax(scores):
    """Return the probabilities of each row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main():
    """Train with all samples in each step, write the model, print its accuracies."""
    (pixels, labels), (test_x, test_y) = samples("train.csv"), samples("test.csv")
    weights, bias = np.zeros((64, 10)), np.zeros(10)
    for _ in range(STEPS):
        error = softmax(pixels @ weights + bias) - np.eye(10)[labels]
        weights -= RATE * pixels.T @ error / len(labels)
        bias -= RATE * error.mean(axis=0)
    layer = {
        "activation": "softmax",
        "weights": [[float(f"{w:.5g}") for w in row] for row in weights.T],
        "bias": [float(f"{b:.5g}") for b in bias],
    }
    model = {"format": "neptune-digits/1", "pool": 1, "layers": [layer]}
    (HERE / "medium.json").write_text(json.dumps(model, separators=(",", ":")) + "\n")
    for name, x, y in (("train", pixels, labels), ("held out", test_x, test_y)):
        print(f"medium: {name} {(softmax(x @ weights + bias).argmax(axis=1) == y).mean():.4f}")


if __name__ == "__main__":
    main()
