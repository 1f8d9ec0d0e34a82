#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the output of bench-comm-growth as SVG: bench/comm_growth.py < TEXT > SVG. Needs no packages."""
import math
import sys

WIDTH, HEIGHT, LEFT, TOP = 250, 170, 58, 34
rows = {"local": [], "store": []}
for line in sys.stdin:
    if not line.startswith("#") and line.split():
        way, *numbers = line.split()
        rows[way].append([float(number) for number in numbers])

# Columns: ranks, join s, messages, bytes, B/rank, reduce us. The theory is a function of the number of ranks.
PANELS = [
    ("seconds to join", [("local", 1), ("store", 1)], None),
    ("messages of the store", [("store", 2)], lambda n: 18 * n + 1),
    ("bytes of the store", [("store", 3)], lambda n: 810 * n + 14 * n * n),
    ("resident bytes per rank", [("local", 4), ("store", 4)], None),
    ("microseconds of an all_reduce", [("local", 5), ("store", 5)], None),
]
COLORS = {"local": "#1f6fb4", "store": "#c8501e"}


def panel(title, curves, theory, x0, y0):
    lines = [(COLORS[way], "", [(row[0], row[column]) for row in rows[way] if row[column] > 0])
             for way, column in curves]
    if theory:
        lines.append(("#555", "4 3", [(row[0], theory(row[0])) for row in rows[curves[0][0]]]))
    values = [math.log10(y) for _, _, points in lines for _, y in points]
    low, high = math.floor(min(values)), math.ceil(max(values))
    last = max(math.log2(x) for _, _, points in lines for x, _ in points)
    place_x = lambda x: x0 + math.log2(x) / last * WIDTH
    place_y = lambda y: y0 + HEIGHT - (math.log10(y) - low) / (high - low) * HEIGHT
    out = [f'<text x="{x0}" y="{y0 - 10}" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        y = place_y(10 ** power)
        out.append(f'<path d="M{x0} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        label = f"{10 ** power:g}" if -4 < power < 4 else f"1e{power}"
        out.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for power in range(0, int(last) + 1, 2):
        x, y = place_x(2 ** power), y0 + HEIGHT + 16
        out.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{2 ** power}</text>')
    for color, dashes, points in lines:
        text = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
        out.append(f'<polyline points="{text}" fill="none" stroke="{color}" stroke-dasharray="{dashes}"'
                   ' stroke-width="1.6"/>')
    return out


svg = []
for index, (title, curves, theory) in enumerate(PANELS):
    svg += panel(title, curves, theory, LEFT + index % 3 * (WIDTH + 80), TOP + index // 3 * (HEIGHT + 70))
legend = LEFT + 2 * (WIDTH + 80)
for index, (name, color, dashes) in enumerate((("ctrt_comm_new_local", COLORS["local"], ""),
                                               ("ctrt_comm_new, a tcp store", COLORS["store"], ""),
                                               ("theory", "#555", "4 3"))):
    y = TOP + HEIGHT + 90 + index * 22
    svg.append(f'<path d="M{legend} {y}h30" stroke="{color}" stroke-dasharray="{dashes}" stroke-width="1.6"/>')
    svg.append(f'<text x="{legend + 38}" y="{y + 4}">{name}</text>')
svg.append(f'<text x="{legend}" y="{TOP + HEIGHT + 160}">horizontal: number of ranks</text>')
width, height = LEFT + 3 * (WIDTH + 80) - 60, TOP + 2 * (HEIGHT + 70) - 20
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
      ' font-size="12">')
print(f'<rect width="{width}" height="{height}" fill="white"/>')
print("\n".join(svg))
print("</svg>")
