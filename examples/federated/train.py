#!/usr/bin/env python3
"""The training program of this example: a small neural network, in NumPy alone.

Neptune starts it once per round and worker, with a dataset of this node and the weights of the round. It needs no
network and knows nothing of other workers. docs/python.md describes `Round`.
"""

import json
import os
import pathlib

import numpy as np
from neptune_worker import Round

CLASSES, PIXELS = 10, 64


def read_samples(path):
    """Return pixels 0..1 and labels. A line of a csv file has 64 numbers 0..16 and the label."""
    path = pathlib.Path(path)
    table = np.array(list(captured(path)), ndmin=2) if path.is_dir() else np.loadtxt(path, delimiter=",", ndmin=2)
    return table[:, :PIXELS] / 16.0, table[:, PIXELS].astype(int)


def captured(directory):
    """Yield 64 numbers and the label of the cloud, of each labelled record that a gateway captured."""
    for file in sorted(directory.glob("*.jsonl")):
        # The last line may be half written.
        for line in file.read_text().splitlines(keepends=True):
            record = json.loads(line) if line.endswith("\n") else {}
            if "label" in record:
                yield [*record["request"]["inputs"][0]["data"], record["label"]]


def first_weights(random, hidden):
    """Return He-initialized weights. Names and shapes stay the same in all rounds."""
    w1, w2 = (random.normal(0.0, np.sqrt(2.0 / n), (n, m)) for n, m in ((PIXELS, hidden), (hidden, CLASSES)))
    weights = {"w1": w1, "b1": np.zeros(hidden), "w2": w2, "b2": np.zeros(CLASSES)}
    return {name: values.astype(np.float32) for name, values in weights.items()}


def forward(weights, pixels):
    """Return the hidden layer (ReLU) and the probabilities (softmax)."""
    hidden = np.maximum(pixels @ weights["w1"] + weights["b1"], 0.0)
    sums = hidden @ weights["w2"] + weights["b2"]
    powers = np.exp(sums - sums.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def step(weights, pixels, labels, rate):
    """Update the weights in place with one batch: gradient descent on the cross-entropy."""
    hidden, error = forward(weights, pixels)
    error = (error - np.eye(CLASSES)[labels]) / len(labels)
    back = (error @ weights["w2"].T) * (hidden > 0.0)
    gradients = {"w2": hidden.T @ error, "b2": error.sum(0), "w1": pixels.T @ back, "b1": back.sum(0)}
    for name, gradient in gradients.items():
        weights[name] -= rate * gradient


with Round() as r:
    random = np.random.default_rng(r.seed)
    if r.task == "initialize":
        r.finish(first_weights(random, int(os.environ.get("HIDDEN", "32"))), samples=0)
    else:
        weights = {name: values.astype(np.float64) for name, values in r.weights.items()}
        pixels, labels = read_samples(r.dataset_path)
        epochs, batch = (int(os.environ.get(name, text)) for name, text in (("EPOCHS", "5"), ("BATCH", "16")))
        for _ in range(epochs if r.task == "train" else 0):
            for chosen in np.split(random.permutation(len(labels)), range(batch, len(labels), batch)):
                step(weights, pixels[chosen], labels[chosen], float(os.environ.get("LR", "0.1")))
        probabilities = forward(weights, pixels)[1]
        loss = -np.log(np.maximum(probabilities[np.arange(len(labels)), labels], 1e-12)).mean()
        accuracy = (probabilities.argmax(axis=1) == labels).mean()
        r.finish(weights, samples=len(labels), loss=loss, metrics={"accuracy": accuracy})
