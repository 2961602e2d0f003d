#!/usr/bin/env python3
"""Split the UCI handwritten digits, and train the edge's small model and the cloud's big one.

    python3 -m venv /tmp/digits && /tmp/digits/bin/pip install scikit-learn==1.9.1 numpy==2.4.6
    /tmp/digits/bin/python examples/digits/train.py

writes data/{train,test}.csv and models/{small,big}.json next to this file. The data are part of scikit-learn; nothing
else is downloaded. All seeds are fixed: with these versions (Python 3.11, x86_64) the files are identical byte for byte. Other versions or processors may round differently; the split stays the same and the
accuracies stay within about one percentage point.
"""

import json
import pathlib

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

HERE = pathlib.Path(__file__).resolve().parent
HELD_OUT = 600
SPLIT_SEED = 2021
BIG_SEED = 1


def split(pixels, labels):
    """Return (train, test) as pairs of pixels and labels; the original order is kept within each."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    test, train = np.sort(order[:HELD_OUT]), np.sort(order[HELD_OUT:])
    return (pixels[train], labels[train]), (pixels[test], labels[test])


def write_samples(name, pixels, labels):
    """Write one sample per line: 64 integers 0..16, row by row, then the label."""
    rows = np.column_stack([pixels, labels]).astype(int)
    text = "\n".join(",".join(map(str, row)) for row in rows.tolist())
    (HERE / "data" / name).write_text(text + "\n")


def features(pixels, pool):
    """Scale to 0..1 and average squares of pool x pool pixels: (n, 64) -> (n, (8 / pool)^2)."""
    side = 8 // pool
    squares = (pixels / 16.0).reshape(-1, side, pool, side, pool)
    return squares.mean(axis=(2, 4)).reshape(-1, side * side)


def layer(weights, bias, activation):
    """Return a layer in the format of models/*.json: one row of weights per output, five significant digits."""
    short = [[float(f"{w:.5g}") for w in row] for row in weights.T.tolist()]
    return {
        "activation": activation,
        "weights": short,
        "bias": [float(f"{b:.5g}") for b in bias.tolist()],
    }


def write_model(name, pool, layers):
    """Write one model file; README.md describes the format."""
    model = {"format": "neptune-digits/1", "pool": pool, "layers": layers}
    text = json.dumps(model, separators=(",", ":"))
    (HERE / "models" / name).write_text(text + "\n")


def main():
    """Split, train both models, write everything, print the accuracies of the unrounded models."""
    (train_x, train_y), (test_x, test_y) = split(*load_digits(return_X_y=True))
    write_samples("train.csv", train_x, train_y)
    write_samples("test.csv", test_x, test_y)

    small = LogisticRegression(C=100.0, max_iter=10_000)
    small.fit(features(train_x, 2), train_y)
    write_model("small.json", 2, [layer(small.coef_.T, small.intercept_, "softmax")])

    big = MLPClassifier((128, 64), alpha=0.01, max_iter=500, random_state=BIG_SEED)
    big.fit(features(train_x, 1), train_y)
    activations = ["relu", "relu", "softmax"]
    write_model("big.json", 1, list(map(layer, big.coefs_, big.intercepts_, activations)))

    for name, model, pool in (("small", small, 2), ("big", big, 1)):
        train = model.score(features(train_x, pool), train_y)
        test = model.score(features(test_x, pool), test_y)
        print(f"{name}: train {train:.4f}, held out {test:.4f}")


if __name__ == "__main__":
    main()
