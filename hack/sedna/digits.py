"""The models and images of examples/digits: the arithmetic of a model, the confidence, and the order of the samples."""

import json
import pathlib

import numpy as np

# The noise of docs/cascade.md: a standard deviation of 3 of 16, cut to 0..16.
NOISE = 3.0
NOISY_PER_IMAGE = 4
SEED = 20


class Model:
    """A chain of dense layers that ends in ten probabilities; examples/digits/README.md has the format of the file."""

    def __init__(self, path):
        file = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.pool = file["pool"]
        self.layers = [
            (np.array(layer["weights"]).T, np.array(layer["bias"]), layer["activation"]) for layer in file["layers"]
        ]

    def probabilities(self, images):
        """One row of ten probabilities per image of 64 pixels."""
        side = 8 // self.pool
        squares = np.asarray(images, dtype=float).reshape(-1, side, self.pool, side, self.pool)
        values = squares.mean(axis=(2, 4)).reshape(-1, side * side) / 16
        for weights, bias, activation in self.layers:
            values = values @ weights + bias
            if activation == "relu":
                values = np.maximum(values, 0)
            else:
                powers = np.exp(values - values.max(axis=1, keepdims=True))
                values = powers / powers.sum(axis=1, keepdims=True)
        return values


def confidence(probabilities):
    """The confidence of CrossEntropy per row: 1 for a certain answer, 0 for equal probabilities."""
    logs = np.log(np.maximum(probabilities, 1e-300))
    return 1 + (probabilities * logs).sum(axis=1) / np.log(probabilities.shape[1])


class Schedule:
    """The samples in their order: images drawn with replacement from clean ones, noisy ones, and clean ones."""

    def __init__(self, images, labels, order):
        self.images, self.labels, self.order = images, labels, order

    @classmethod
    def draw(cls, csv, phases):
        """`phases` are pairs of "clean" or "noisy" and a number of samples."""
        rows = np.loadtxt(csv, delimiter=",")
        clean, labels = rows[:, :-1], rows[:, -1].astype(int)
        random = np.random.default_rng(SEED)
        repeated = np.repeat(clean, NOISY_PER_IMAGE, axis=0)
        noisy = np.clip(repeated + random.normal(0, NOISE, repeated.shape), 0, 16).round(2)
        images = np.concatenate([clean, noisy])
        labels = np.concatenate([labels, np.repeat(labels, NOISY_PER_IMAGE)])
        kinds = {"clean": (0, len(clean)), "noisy": (len(clean), len(images))}
        order = np.concatenate([random.integers(*kinds[kind], number) for kind, number in phases])
        return cls(images, labels, order)

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote."""
        with np.load(path) as file:
            return cls(file["images"], file["labels"], file["order"])

    def save(self, path):
        """Writes the schedule for the other processes."""
        np.savez(path, images=self.images, labels=self.labels, order=self.order)


def threshold_for(model, csv, ratio):
    """The threshold below which this share of the clean images is hard."""
    images = np.loadtxt(csv, delimiter=",")[:, :-1]
    sorted_confidences = np.sort(confidence(model.probabilities(images)))
    return float(sorted_confidences[int(round(ratio * len(images)))])
