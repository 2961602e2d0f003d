#!/usr/bin/env python3
"""Draw terminal output as an SVG with monospaced text.

    ./hack/demo.sh | tee demo.txt
    sed -n '/^Starting a/,/^model status/p' demo.txt | sed '/^In another/,/^Logs/d' | cat -s |
        docs/images/terminal.py '$ ./hack/demo.sh' >docs/images/demo.svg

The first argument is the command line that is shown. Lines of standard input are drawn as they are; lines wider than
COLUMNS are cut with an ellipsis. The same input gives the same picture.
"""

import html
import re
import sys

COLUMNS = 118
ADVANCE, LEADING, MARGIN, BAR = 8.4, 20, 20, 36
BACKGROUND, TEXT, DIM, GREEN, YELLOW, BLUE = "#1e1e2e", "#cdd6f4", "#7f849c", "#a6e3a1", "#f9e2af", "#89b4fa"


def colour(line):
    """The colour of a line."""
    if line.startswith("$ "):
        return BLUE
    if re.match(r" *(TIME|RESULT|CHECK) ", line):
        return DIM
    if re.search(r"\b(FAILED|Failed|error)\b", line):
        return YELLOW
    if re.search(r"\b(passed|Running)\b", line):
        return GREEN
    if "Pending" in line:
        return YELLOW
    if line.startswith("[") or line == "...":
        return DIM
    return TEXT


def main():
    """Read standard input, write the picture to standard output."""
    lines = [line.rstrip() for line in sys.stdin.read().split("\n")]
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).replace("\r", "") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    lines = sys.argv[1:2] + lines
    cut = [line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "\u2026" for line in lines]
    width = round(2 * MARGIN + COLUMNS * ADVANCE)
    height = BAR + LEADING * len(cut) + MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">')
    print(f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>')
    for at, fill in enumerate(("#f38ba8", "#f9e2af", "#a6e3a1")):
        print(f'<circle cx="{20 + 20 * at}" cy="18" r="6" fill="{fill}"/>')
    fonts = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
    print(f'<g font-family="{fonts}" font-size="14" xml:space="preserve">')
    for row, line in enumerate(cut):
        if not line:
            continue
        y = BAR + LEADING * row + 14
        length = round(len(line) * ADVANCE, 1)
        place = f'x="{MARGIN}" y="{y}" textLength="{length}" lengthAdjust="spacing"'
        print(f'<text {place} fill="{colour(line)}">{html.escape(line)}</text>')
    print("</g>\n</svg>")


if __name__ == "__main__":
    main()
