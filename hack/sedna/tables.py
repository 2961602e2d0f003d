"""The tables of the comparison, from the rows that load.py records. Pure."""

import numpy as np

from load import CLOUD, EDGE, NONE

DUE, BEGIN, END, SIDE, LABEL = range(5)
WINDOW = 500
# A sample that waits longer is late.
LATE_SECONDS = 1.0


def spread(values):
    """Median and 99 % quantile, from seconds to milliseconds."""
    if not len(values):
        return "-", "-"
    return tuple(f"{quantile * 1e3:.2f}" for quantile in np.quantile(values, (0.5, 0.99)))


def per_second(rows):
    """Samples per second."""
    return len(rows) / (rows[-1, END] - rows[0, BEGIN])


def print_speed(rounds, memory):
    """Speed and memory. `rounds` has the rows of each round by way, `memory` the MiB of edge and cloud."""
    head = ("", "samples/s", "all p50", "p99", "easy p50", "p99", "hard p50", "p99", "PSS edge", "cloud")
    line = "{:27}{:>10}" + "{:>10}{:>8}" * 3 + "{:>10}{:>8}"
    print("\nAs fast as possible, one request at a time; times per sample (gateway, 32 rows: per request) in ms, MiB")
    print(line.format(*head))
    rates = {}
    for way, of_rounds in rounds.items():
        rows = np.concatenate(of_rounds)
        times, sides = rows[:, END] - rows[:, BEGIN], rows[:, SIDE]
        rates[way] = [per_second(rows) for rows in of_rounds]
        cells = [f"{np.median(rates[way]):.0f}", *spread(times)]
        for side in (EDGE, CLOUD):
            cells += spread(times[sides == side]) if way != "gateway, 32 rows" else ("-", "-")
        cells += [f"{value:.1f}" for value in memory[way]]
        print(line.format(way, *cells))
    for way in rates:
        if way != "imitation":
            ratios = np.array(rates[way]) / np.array(rates["imitation"])
            low, high = ratios.min(), ratios.max()
            print(f"{way}: {np.median(ratios):.2f} x the samples/s of the imitation ({low:.2f} to {high:.2f})")


def print_uploads(rounds, reported, schedule, phases, ratio):
    """Uploaded shares and accuracies per phase."""
    names = [f"{kind} {number + 1}" for number, (kind, _) in enumerate(phases)]
    line = "{:27}" + "{:>9}" * (len(phases) + 3) + "   " + "{:>9}" * len(phases)
    print(f"\nShare uploaded, {ratio} asked; worst window of {WINDOW}; what the counters report; accuracy")
    print(line.format("", *names, "all", "worst", "reported", *names))
    labels, ends = schedule.labels[schedule.order], np.cumsum([number for _, number in phases])
    for way, of_rounds in rounds.items():
        uploaded = np.array([rows[:, SIDE] == CLOUD for rows in of_rounds])
        right = np.array([rows[:, LABEL] == labels for rows in of_rounds])
        windows = np.lib.stride_tricks.sliding_window_view(uploaded, WINDOW, axis=1).mean(axis=2)
        by_phase = [part.mean() for part in np.split(uploaded, ends[:-1], axis=1)]
        cells = [*by_phase, uploaded.mean(), windows.max(), np.median(reported[way])]
        cells += [part.mean() for part in np.split(right, ends[:-1], axis=1)]
        print(line.format(way, *(f"{value:.3f}" for value in cells)))


def print_outage(title, found, rate):
    """What happened while the cloud was away. `found` has rows, begin and end of the outage by way."""
    head = ("", "away", "due", "in time", "no answer", "longest wait", "needs cloud p50", "max", "normal after")
    line = "{:27}{:>8}{:>8}{:>10}{:>11}{:>14}{:>17}{:>12}{:>14}"
    print(f"\n{title}; {rate} samples per second")
    print(line.format(*head))
    for way, (rows, begin, end) in found.items():
        due = rows[(rows[:, DUE] >= begin) & (rows[:, DUE] < end)]
        waits = due[:, END] - due[:, DUE]
        during = rows[(rows[:, BEGIN] >= begin) & (rows[:, BEGIN] < end) & (rows[:, SIDE] != EDGE)]
        blocked = np.sort(during[:, END] - during[:, BEGIN])
        late = rows[(rows[:, DUE] >= begin) & (rows[:, END] - rows[:, DUE] > LATE_SECONDS)]
        after = max(0.0, late[:, END].max() - end) if len(late) else 0.0
        cells = [f"{end - begin:.1f} s", len(due), int((waits <= LATE_SECONDS).sum())]
        cells += [int((rows[:, SIDE] == NONE).sum()), f"{waits.max():.2f} s"]
        cells += [f"{np.median(blocked) * 1e3:.1f} ms", f"{blocked.max() * 1e3:.0f} ms", f"{after:.1f} s"]
        print(line.format(way, *cells))
