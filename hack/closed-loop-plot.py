#!/usr/bin/env python3
"""Draw the windows of a closed loop as SVG. Reads one JSON object per line: edge, joint, uploaded, each 0 to 1."""

import json
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 56, 616, 64, 372
WINDOW = 500
LINES = {"joint": ("joint accuracy", "#0969da"), "edge": ("edge accuracy", "#bc4c00"), "uploaded": ("uploaded", "#1a7f37")}
STYLE = """text{font:13px system-ui,"DejaVu Sans",sans-serif;fill:#57606a}.back{fill:#fff}.title{font-size:17px;font-weight:600;fill:#1f2328}
.grid{stroke:#d8dee4}path{fill:none;stroke-width:2.5}
@media (prefers-color-scheme:dark){text{fill:#9198a1}.back{fill:#0d1117}.title{fill:#f0f6fc}.grid{stroke:#262c36}}"""


def main():
    """Read, draw, write."""
    windows = [json.loads(line) for line in sys.stdin if line.strip()]

    def x(window):
        return LEFT + (RIGHT - LEFT) * window / max(len(windows) - 1, 1)

    def y(share):
        return BOTTOM - (BOTTOM - TOP) * share

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        "<title>Accuracy and uploads while new digits appear and the model is trained again</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        f'<text class="title" x="{LEFT}" y="34">A model that repairs itself after new digits appear</text>',
    ]
    for tenths in range(0, 11, 2):
        at = y(tenths / 10)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tenths / 10:.1f}</text>')
    out.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">samples (0 to {len(windows) * WINDOW})</text>')
    for key, (label, colour) in LINES.items():
        points = " L".join(f"{x(at):.1f},{y(window[key]):.1f}" for at, window in enumerate(windows))
        out.append(f'<path stroke="{colour}" d="M{points}"/>')
        out.append(f'<text x="{RIGHT + 10}" y="{y(windows[-1][key]) + (14 if key == "edge" else 0):.1f}" style="fill:{colour}">{label}</text>')
    print("\n".join([*out, "</svg>"]))


if __name__ == "__main__":
    main()
