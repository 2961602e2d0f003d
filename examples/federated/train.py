#!/usr/bin/env python3
"""The training program of this example: a small neural network, in NumPy alone.

Neptune starts it once per round and worker, with a dataset of this node and the weights of the round. It needs no
network and knows nothing of other workers. docs/training.md describes the variables.

    TASK=initialize                                          writes the first weights
    TASK=train     WEIGHTS_URL=weights.npz DATASET_URL=a.csv writes new weights
    TASK=evaluate  WEIGHTS_URL=weights.npz DATASET_URL=a.csv writes metrics only
"""

import json
import os
import pathlib

import numpy as np

CLASSES = 10
PIXELS = 64


def read_samples(path):
    """Return pixels scaled to 0..1 and labels.

    A line of a csv file has 64 numbers 0..16, then the label. In a directory are the records that a gateway captured:
    a line of a *.jsonl file is one sample with the request of the client and the label of the cloud.
    """
    if pathlib.Path(path).is_dir():
        table = np.array(list(captured(pathlib.Path(path))), ndmin=2)
    else:
        table = np.loadtxt(path, delimiter=",", ndmin=2)
    return table[:, :PIXELS] / 16.0, table[:, PIXELS].astype(int)


def captured(directory):
    """Yield 64 numbers 0..16 and the label of each labelled record."""
    for file in sorted(directory.glob("*.jsonl")):
        # The last line may be half written.
        for line in file.read_text().splitlines(keepends=True):
            record = json.loads(line) if line.endswith("\n") else {}
            if "label" in record:
                yield [*record["request"]["inputs"][0]["data"], record["label"]]


def first_weights(hidden, random):
    """Return He-initialized weights. Names and shapes stay the same in all rounds."""

    def layer(inputs, outputs):
        return random.normal(0.0, np.sqrt(2.0 / inputs), (inputs, outputs))

    return {"w1": layer(PIXELS, hidden), "b1": np.zeros(hidden), "w2": layer(hidden, CLASSES), "b2": np.zeros(CLASSES)}


def forward(weights, pixels):
    """Return the hidden layer (ReLU) and the probabilities (softmax)."""
    hidden = np.maximum(pixels @ weights["w1"] + weights["b1"], 0.0)
    sums = hidden @ weights["w2"] + weights["b2"]
    powers = np.exp(sums - sums.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def step(weights, pixels, labels, rate):
    """Update the weights in place with one batch: gradient descent on the cross-entropy."""
    hidden, probabilities = forward(weights, pixels)
    error = probabilities.copy()
    error[np.arange(len(labels)), labels] -= 1.0
    error /= len(labels)
    back = (error @ weights["w2"].T) * (hidden > 0.0)
    weights["w2"] -= rate * hidden.T @ error
    weights["b2"] -= rate * error.sum(axis=0)
    weights["w1"] -= rate * pixels.T @ back
    weights["b1"] -= rate * back.sum(axis=0)


def train(weights, pixels, labels, epochs, rate, batch, random):
    """Train for a number of epochs, each in another order."""
    for _ in range(epochs):
        order = random.permutation(len(labels))
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            step(weights, pixels[chosen], labels[chosen], rate)


def measure(weights, pixels, labels):
    """Return the cross-entropy and the share of correct answers."""
    _, probabilities = forward(weights, pixels)
    loss = -np.log(np.maximum(probabilities[np.arange(len(labels)), labels], 1e-12)).mean()
    return float(loss), float((probabilities.argmax(axis=1) == labels).mean())


def main():
    """Do one task."""
    task, output = os.environ["TASK"], pathlib.Path(os.environ["OUTPUT_DIR"])
    random = np.random.default_rng(int(os.environ.get("SEED", "0")))
    hidden = int(os.environ.get("HIDDEN", "32"))
    if task == "initialize":
        weights = first_weights(hidden, random)
        result = {"samples": 0}
    else:
        with np.load(os.environ["WEIGHTS_URL"], allow_pickle=False) as file:
            weights = {name: file[name].astype(np.float64) for name in file.files}
        pixels, labels = read_samples(os.environ["DATASET_URL"])
        if task == "train":
            epochs, rate = int(os.environ.get("EPOCHS", "5")), float(os.environ.get("LR", "0.1"))
            train(weights, pixels, labels, epochs, rate, int(os.environ.get("BATCH", "16")), random)
        loss, accuracy = measure(weights, pixels, labels)
        result = {"samples": len(labels), "loss": loss, "metrics": {"accuracy": accuracy}}
    if task != "evaluate":
        np.savez(output / "weights.npz", **{name: value.astype(np.float32) for name, value in weights.items()})
    (output / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
