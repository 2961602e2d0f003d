"""The model: a network with one hidden layer, and its data."""

import numpy as np

PIXELS, HIDDEN, DIGITS = 64, 32, 10


def initial(seed=1):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(PIXELS, HIDDEN)) * (2 / PIXELS) ** 0.5).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        (rng.normal(size=(HIDDEN, DIGITS)) * (2 / HIDDEN) ** 0.5).astype(np.float32),
        np.zeros(DIGITS, np.float32),
    ]


def load(path):
    """64 pixels from 0 to 16 and the digit per line."""
    data = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)
    return data[:, :PIXELS] / 16, data[:, PIXELS].astype(np.int64)


def forward(weights, images):
    w1, b1, w2, b2 = weights
    hidden = np.maximum(images @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def train(weights, images, digits, epochs, rate, batch=16, seed=1):
    weights = [part.copy() for part in weights]
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for begin in range(0, len(order), batch):
            some = order[begin : begin + batch]
            hidden, error = forward(weights, images[some])
            error[np.arange(len(some)), digits[some]] -= 1
            error /= len(some)
            back = (error @ weights[2].T) * (hidden > 0)
            steps = [images[some].T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
            for part, step in zip(weights, steps):
                part -= rate * step.astype(np.float32)
    return weights


def evaluate(weights, images, digits):
    """The loss and the accuracy."""
    _, shares = forward(weights, images)
    own = shares[np.arange(len(digits)), digits]
    return float(-np.log(own + 1e-9).mean()), float((shares.argmax(axis=1) == digits).mean())
