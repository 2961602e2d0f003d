#!/usr/bin/env python3
"""Share the digits of examples/digits among three nodes. Needs nothing but Python.

    python3 examples/federated/split.py DIRECTORY [--disjoint]

writes a.csv, b.csv and c.csv to DIRECTORY. The digits 0 to 3 belong to a, 4 to 6 to b, 7 to 9 to c: each node gets
80 % of its own digits, and 10 % of those of each other node. With --disjoint it gets all of its own and no others.
"""

import pathlib
import sys

DIGITS = pathlib.Path(__file__).resolve().parent.parent / "digits" / "data" / "train.csv"
OWNER = {digit: node for node, digits in {"a": "0123", "b": "456", "c": "789"}.items() for digit in digits}


def node_of(digit, number, disjoint):
    """Return the node of the sample with this number among the samples of its digit."""
    owner = OWNER[digit]
    others = sorted(set(OWNER.values()) - {owner})
    return owner if disjoint or number % 10 < 8 else others[number % 10 - 8]


def main():
    """Write the three files."""
    directory, disjoint = pathlib.Path(sys.argv[1]), "--disjoint" in sys.argv[2:]
    seen, shares = {}, {node: [] for node in "abc"}
    for line in DIGITS.read_text().splitlines():
        digit = line.rsplit(",", 1)[1]
        seen[digit] = seen.get(digit, -1) + 1
        shares[node_of(digit, seen[digit], disjoint)].append(line + "\n")
    directory.mkdir(parents=True, exist_ok=True)
    for node, lines in shares.items():
        (directory / f"{node}.csv").write_text("".join(lines))
        print(f"{node}.csv: {len(lines)} samples")


if __name__ == "__main__":
    main()
