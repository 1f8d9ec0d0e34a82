#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws doc/layers.svg from the #include lines of the tree: `doc/layers.py > doc/layers.svg`.

An arrow means that files of one folder include headers of another. An arrow is omitted where a longer path says the
same. tests/layers.sh compares the committed picture with what this script draws.
"""
import collections
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CAPTIONS = {
    "include": "public headers", "backends": "kinds of hardware", "tools": "the command ctrt",
    "plugins/common": "clock, fork, files", "plugins/memory": "memory policies",
    "plugins/comm": "engines of communicators",
    "plugins/strategy": "parallel strategies", "plugins/image": "decoders of images",
    "core/base": "status, log, parameters", "core/registry": "loading of plugins", "core/device": "names, opening",
    "core/stream": "streams, events", "core/memory": "storages, hazards", "core/memory_stats": "who uses what",
    "core/graph": "capture, replay", "core/tensor": "dtypes, shapes", "core/ops": "dispatch, op functions",
    "core/lifecycle": "opening, closing", "core/dryrun": "predicted memory", "core/autograd": "graph, derivatives",
    "nn": "modules, optimizers",
    "share": "between processes", "parallel": "communicators, strategies", "data": "datasets, loader",
}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 164, 44, 26, 34, 16


def folder(path):
    """The node of a path: the folder of core or of plugins, else the first folder; None if it is not drawn."""
    parts = path.split("/")
    name = "/".join(parts[:2]) if parts[0] in ("core", "plugins") else parts[0]
    return name if name in CAPTIONS else None


def includes():
    """All pairs (folder, folder that it includes headers of)."""
    files = [os.path.relpath(os.path.join(where, name), ROOT)
             for top in ("include", "core", "nn", "share", "parallel", "data", "backends", "plugins", "tools")
             for where, _, names in os.walk(os.path.join(ROOT, top)) for name in names
             if re.search(r"\.(c|h|def|cu|cuh)$", name)]
    known = set(files)
    pairs = set()
    for path in files:
        if folder(path) is None:
            continue
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            names = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', file.read(), re.M)
        for name in names:
            here = os.path.normpath(os.path.join(os.path.dirname(path), name))
            own = "/".join(path.split("/")[:2]) + "/" + name
            target = next((p for p in (here, name, "include/" + name, own, "core/" + name) if p in known), None)
            if target == "core/base/utf8.h":            # see tests/layers.sh
                continue
            if target and folder(target) and folder(target) != folder(path):
                pairs.add((folder(path), folder(target)))
    return pairs


def reduce(pairs):
    """Removes the pairs that a longer path implies."""
    after = collections.defaultdict(set)
    for a, b in pairs:
        after[a].add(b)

    def reach(a, seen):
        for b in after[a]:
            if b not in seen:
                seen.add(b)
                reach(b, seen)
        return seen
    return {(a, b) for a, b in pairs if not any(b in reach(c, set()) for c in after[a] if c != b)}


def draw(pairs):
    edges = reduce(pairs)
    depth = {}

    def level(node):
        if node not in depth:
            depth[node] = 1 + max((level(b) for a, b in edges if a == node), default=-1)
        return depth[node]
    rows = collections.defaultdict(list)
    for node in sorted(CAPTIONS, key=lambda n: (not n.startswith("core"), n)):
        rows[level(node)].append(node)
    columns = max(map(len, rows.values()))
    width = 2 * MARGIN + columns * WIDTH + (columns - 1) * GAP_X
    height = 2 * MARGIN + len(rows) * HEIGHT + (len(rows) - 1) * GAP_Y
    at = {node: (MARGIN + i * (WIDTH + GAP_X), MARGIN + (len(rows) - 1 - row) * (HEIGHT + GAP_Y))
          for row, nodes in rows.items() for i, node in enumerate(nodes)}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif">',
           '<title>The layers of ctrt, from its #include lines</title>',
           '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
           '<path d="M0,0 L7,3 L0,6 z" fill="#667"/></marker></defs>',
           f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for a, b in sorted(edges):
        (ax, ay), (bx, by) = at[a], at[b]
        x1, y1, x2, y2 = ax + WIDTH // 2, ay + HEIGHT, bx + WIDTH // 2, by
        if ax == bx and y2 - y1 > GAP_Y:        # passes beside the boxes between them
            x1 = x2 = ax + WIDTH
            y1, y2 = ay + HEIGHT // 2, by + HEIGHT // 2
            path = f"M{x1},{y1} C{x1 + GAP_X},{y1 + GAP_X} {x2 + GAP_X},{y2 - GAP_X} {x2},{y2}"
        else:
            middle = (y1 + y2) // 2
            path = f"M{x1},{y1} C{x1},{middle} {x2},{middle} {x2},{y2}"
        out.append(f'<path d="{path}" fill="none" stroke="#667" stroke-width="1.2" marker-end="url(#head)"/>')
    for node, (x, y) in sorted(at.items()):
        fill = "#e8f0fe" if node.startswith("core") else "#eaf5ea" if "/" in node or node == "backends" else "#f4f1e8"
        out += [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="{fill}" stroke="#889"/>',
                f'<text x="{x + WIDTH // 2}" y="{y + 18}" font-size="13" font-weight="bold" text-anchor="middle">'
                f'{node}</text>',
                f'<text x="{x + WIDTH // 2}" y="{y + 34}" font-size="11" text-anchor="middle" fill="#445">'
                f'{CAPTIONS[node]}</text>']
    out.append("</svg>")
    return "\n".join(out)


if __name__ == "__main__":
    sys.stdout.write(draw(includes()) + "\n")
