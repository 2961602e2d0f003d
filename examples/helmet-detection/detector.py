"""Synthetic frames, and a detector that works on their pixels.

A frame is a square of brightness 0..1 (a list of rows) that a seeded generator draws: noise, a few round bright blobs
("helmets", some of them dim), and bars that are not helmets. A box is [xmin, ymin, xmax, ymax, score, label], in
pixels, with a score of 0..1. Run this file to evaluate both models.
"""

import json
import math
import random

from neptune_worker.rules import IBT

SIDE = 32
LABEL = 1


def draw(number):
    """Return frame `number`, which is always the same, and the centres of its helmets as (x, y)."""
    rng = random.Random(number)
    frame = [[rng.uniform(0.0, 0.25) for _ in range(SIDE)] for _ in range(SIDE)]
    helmets = []
    for _ in range(rng.randint(1, 3)):
        x, y = rng.randint(6, SIDE - 7), rng.randint(6, SIDE - 7)
        if all(math.dist((x, y), other) > 10 for other in helmets):
            helmets.append((x, y))
            dim = rng.random() < 0.2
            light = rng.uniform(0.4, 0.55) if dim else rng.uniform(0.8, 1.0)
            _disc(frame, x, y, rng.choice((2.5, 3.0, 3.0, 3.5)), light)
    row = rng.randrange(SIDE)
    for x in range(rng.randrange(SIDE // 2), SIDE):
        frame[row][x] = max(frame[row][x], 0.5)
    return frame, helmets


def _disc(frame, x, y, radius, light):
    """Draw a disc over the frame, darker towards its rim."""
    for j in range(SIDE):
        for i in range(SIDE):
            distance = math.dist((i, j), (x, y))
            if distance <= radius:
                frame[j][i] = light * (1.0 - 0.2 * distance / radius)


def load(path):
    """Read a model file: `radii` of discs, `stride` in pixels, `min_score`, and `full_contrast`, which scores 1."""
    with open(path, encoding="utf-8") as file:
        model = json.load(file)
    for key in ("radii", "stride", "min_score", "full_contrast"):
        if key not in model:
            raise ValueError(f"{path} is not a model of this example: {key} is missing")
    return model


def checked(frame):
    """Return a valid frame, or raise ValueError."""
    if len(frame) != SIDE or any(len(row) != SIDE for row in frame):
        raise ValueError(f"a frame must have {SIDE} rows of {SIDE} numbers")
    if any(not 0 <= light <= 1 for row in frame for light in row):
        raise ValueError("brightness must be 0..1")
    return frame


def detect(frame, model, nms_threshold):
    """Return the boxes of discs with a contrast to the ring around them: local peaks, the best of overlapping ones."""
    boxes = []
    for radius in model["radii"]:
        scores = _scores(frame, radius, model)
        for (x, y), score in scores.items():
            near = (other for at, other in scores.items() if math.dist(at, (x, y)) <= radius + 1)
            if score >= model["min_score"] and score >= max(near):
                half = radius + 3
                box = [x - half, y - half, x + half, y + half]
                boxes.append([*box, round(score, 4), LABEL])
    return suppress(boxes, nms_threshold)


def _scores(frame, radius, model):
    """Return the contrast of the disc around each point, 0..1."""
    reach = range(-math.ceil(radius) - 2, math.ceil(radius) + 3)
    near = [(i, j, math.hypot(i, j)) for j in reach for i in reach]
    inside = [(i, j) for i, j, distance in near if distance <= radius]
    ring = [(i, j) for i, j, distance in near if radius < distance <= radius + 2]
    scores = {}
    for y in range(0, SIDE, model["stride"]):
        for x in range(0, SIDE, model["stride"]):
            contrast = _mean(frame, x, y, inside) - _mean(frame, x, y, ring)
            scores[x, y] = min(1.0, max(0.0, contrast / model["full_contrast"]))
    return scores


def _mean(frame, x, y, offsets):
    """Return the mean brightness of the pixels within the frame."""
    points = ((x + i, y + j) for i, j in offsets)
    lights = [frame[j][i] for i, j in points if 0 <= i < SIDE and 0 <= j < SIDE]
    return sum(lights) / len(lights)


def suppress(boxes, nms_threshold):
    """Non-maximum suppression: drop a box that overlaps a better one by more than `nms_threshold` (0..1)."""
    kept = []
    for box in sorted(boxes, key=lambda box: -box[4]):
        if all(overlap(box, better) <= nms_threshold for better in kept):
            kept.append(box)
    return kept


def overlap(a, b):
    """Intersection over union of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def right(boxes, helmets):
    """Return whether the boxes match the helmets: the same number, and each centre within 2 pixels."""
    centres = [((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) for box in boxes]
    found = (any(math.dist(centre, helmet) <= 2 for centre in centres) for helmet in helmets)
    return len(boxes) == len(helmets) and all(found)


def main(frames=200, nms_threshold=0.6):
    """Print the accuracy of the edge model, the cloud model and joint inference."""
    small, big = load("models/small.json"), load("models/big.json")
    rule = IBT()
    edge = cloud = joint = hard = 0
    for number in range(frames):
        frame, helmets = draw(number)
        weak = detect(frame, small, nms_threshold)
        strong_right = right(detect(frame, big, nms_threshold), helmets)
        weak_right = right(weak, helmets)
        asked = rule.is_hard(weak)
        edge += weak_right
        cloud += strong_right
        hard += asked
        joint += strong_right if asked else weak_right
    for name, count in (("edge only", edge), ("cloud only", cloud), ("joint", joint), ("hard", hard)):
        print(f"{name}: {count / frames:.3f}")


if __name__ == "__main__":
    main()
