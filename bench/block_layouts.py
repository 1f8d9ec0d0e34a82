#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the output of bench-block-layouts as SVG: bench/block_layouts.py < TEXT > SVG. Needs no packages."""
import sys

OPS = (("ln1", "layer_norm"), ("qkv", "linear: queries, keys, values"), ("attention", "attention"),
       ("proj", "linear: projection"), ("add1", "add"), ("ln2", "layer_norm"), ("up", "linear: up"), ("gelu", "gelu"),
       ("down", "linear: down"), ("y", "add"))
DIVIDED = (("qkv", "proj", "each member has half of the heads"),
           ("up", "down", "each member has half of the hidden units"))
# Centers of the columns, half the width of a box, width of the figure, height of a line.
FORWARD, BACKWARD, HALF, WIDTH, LINE = 218, 628, 164, 858, 15

CSS = """
text { font-family: sans-serif; font-size: 12px; fill: #1f2328 } .b { font-weight: bold } .m { text-anchor: middle }
.e { text-anchor: end }
.bg { fill: #fff } .box { fill: #f6f8fa; stroke: #57606a } .line { fill: none; stroke: #57606a; stroke-width: 1.4 }
.head { fill: #57606a } .band { fill: #e9f5ec; stroke: #9cc9a8; stroke-dasharray: 4 3 } .small { font-size: 11px }
.replicated { fill: #1f6fb4 } .sharded { fill: #1d7a3e } .partial { fill: #b8480f } .empty { fill: none }
.o { stroke-width: 1.2 } .o.replicated { stroke: #1f6fb4 } .o.sharded { stroke: #1d7a3e } .o.partial { stroke: #b8480f }
.o.empty { fill: none } .o.faint { fill-opacity: .35 } .pill { fill: #b8480f } .onpill { fill: #fff; font-weight: bold }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .bg { fill: #0d1117 } .box { fill: #161b22; stroke: #8b949e } .line { stroke: #8b949e }
.head { fill: #8b949e } .band { fill: #10241a; stroke: #2f6b45 }
.replicated { fill: #6cb6ff } .sharded { fill: #57c77a } .partial { fill: #f0883e } .pill { fill: #f0883e }
.o.replicated { stroke: #6cb6ff } .o.sharded { stroke: #57c77a } .o.partial { stroke: #f0883e } .o.empty { fill: none }
.onpill { fill: #0d1117 } }
"""

tensors, grads, weights = {}, {}, {}
reduced = {"tensor": set(), "grad": set()}                          # the partial tensors that were reduced
previous = {"tensor": None, "grad": None}
for line in sys.stdin:
    kind, *fields = line.rstrip("\n").split("\t")
    if kind == "weight":
        weights.setdefault(fields[0], []).append(fields[1:])
        continue
    name, layout, reduces, others = fields[0], fields[-3], int(fields[-2]), int(fields[-1])
    if others or reduces > 1 or (reduces and (tensors if kind == "tensor" else grads)[previous[kind]] != "partial"):
        sys.exit(f"{kind} {name}: the figure has no place for these collectives")
    (tensors if kind == "tensor" else grads)[name] = layout
    if kind == "tensor":
        weights.setdefault("shapes", {})[name] = fields[1]
    if reduces:
        reduced[kind].add(previous[kind])
    previous[kind] = name
shapes = weights.pop("shapes")
svg = []


def words(layout):
    kind, *numbers = layout.split()
    if kind != "sharded":
        return kind
    return f"sharded in dim {numbers[0]}" + (f", {numbers[1]} groups" if numbers[1] != "1" else "")


def glyph(x, y, layout):
    """Two squares, the memory of the two members, 14 high, from the baseline y."""
    kind = layout.split()[0]
    for member in range(2):
        left = x + member * 19
        if kind == "sharded":
            svg.append(f'<path class="{kind}" d="M{left} {y - 12 + 7 * member}h14v7h-14z"/>')
        square = {"sharded": "empty", "partial": "faint"}.get(kind, "")
        svg.append(f'<path class="o {kind} {square}" d="M{left} {y - 12}h14v14h-14z"/>')
    if kind == "partial":
        svg.append(f'<text class="partial b m" x="{x + 16.5}" y="{y - 1}">+</text>')


def text(x, y, content, classes=""):
    svg.append(f'<text x="{x}" y="{y}"' + (f' class="{classes}"' if classes else "") + f'>{content}</text>')


def arrow(x, start, end):
    tip = 7 if end > start else -7
    svg.append(f'<path class="line" d="M{x} {start}V{end - tip}"/>'
               f'<path class="head" d="M{x} {end}l-4.5 {-tip}h9z"/>')


def edge(x, top, bottom, up, name, layout, shape, reduces):
    """An arrow between two boxes, with the layout of what it carries."""
    arrow(x, bottom if up else top, top if up else bottom)
    def label(y, layout):
        glyph(x + 12, y, layout)
        text(x + 50, y, words(layout), f"small {layout.split()[0]}")
    text(x - 10, (top + bottom) / 2 + 9 if not reduces else (bottom - 14 if up else top + 22),
         f"gradient of {name}" if up else f"{name} [{shape}]", "small e")
    if not reduces:
        label((top + bottom) / 2 + 9, layout)
        return
    label(bottom - 14 if up else top + 22, layout)
    label(top + 22 if up else bottom - 14, "replicated")
    middle = (top + bottom) / 2
    svg.append(f'<rect class="pill" x="{x - 44}" y="{middle - 10}" width="88" height="20" rx="10"/>')
    text(x, middle + 4, "all_reduce", "onpill m")


def box(x, y, height, title, lines):
    svg.append(f'<rect class="box" x="{x - HALF}" y="{y}" width="{2 * HALF}" height="{height}" rx="6"/>')
    text(x, y + 18, title, "b m")
    for index, (content, layout) in enumerate(lines):
        svg.append(f'<text class="small m" x="{x}" y="{y + 18 + LINE * (index + 1)}">{content}: <tspan class="'
                   f'{layout.split()[0]} b">{words(layout)}</tspan></text>')


def parameters(op, gradient):
    """Lines for a box: parameters with equal layouts share one."""
    lines = {}
    for name, shape, layout, of_gradient in weights.get(op, []):
        lines.setdefault(of_gradient if gradient else layout, []).append(name if gradient else f"{name} [{shape}]")
    out = [("gradient of " * gradient + ", ".join(names), layout) for layout, names in lines.items()]
    if op == "attention":
        out = [("gradients of q, k, v", grads["q"])] if gradient else [(f"q, k, v [{shapes['q']}]", tensors["q"])]
    return out


def skip(top, bottom, up):
    """A residual connection, from the arrow at the height `top` to the box at the height `bottom`, or back."""
    if up:
        svg.append(f'<path class="line" d="M{BACKWARD + HALF} {bottom}h38V{top}H{BACKWARD + 7}"/>'
                   f'<path class="head" d="M{BACKWARD} {top}l7 -4.5v9z"/>')
    else:
        svg.append(f'<path class="line" d="M{FORWARD} {top}h{-HALF - 24}V{bottom}h17"/>'
                   f'<path class="head" d="M{FORWARD - HALF} {bottom}l-7 -4.5v9z"/>')


# Heights of the rows and of the gaps above them. A gap is higher if an all_reduce is in it in either direction.
names = ["x"] + [name for name, _ in OPS]
y, top, height, above = 96, {}, {}, {}
for index, (op, _) in enumerate(OPS):
    carried = names[index]
    above[op] = y
    y += 86 if carried in reduced["tensor"] | reduced["grad"] else 50
    top[op] = y
    height[op] = 28 + LINE * max(len(parameters(op, False)), len(parameters(op, True)))
    y += height[op]
bottom = y + 50

for first, last, note in DIVIDED:
    begin, end = top[first] - 8, top[last] + height[last] + 8
    svg.append(f'<rect class="band" x="12" y="{begin}" width="{WIDTH - 24}" height="{end - begin}" rx="10"/>')
    svg.append(f'<text class="small m" transform="translate({BACKWARD - HALF - 12} {(begin + end) / 2})'
               f' rotate(-90)">{note}</text>')
text(FORWARD, 84, "forward", "b m")
text(BACKWARD, 84, "backward", "b m")
for index, (op, title) in enumerate(OPS):
    carried = names[index]
    edge(FORWARD, above[op], top[op], False, carried, tensors[carried], shapes[carried], carried in reduced["tensor"])
    edge(BACKWARD, above[op], top[op], True, carried, grads[carried], shapes[carried],
         carried in reduced["grad"])
    box(FORWARD, top[op], height[op], title, parameters(op, False))
    box(BACKWARD, top[op], height[op], f"{title.split(':')[0]} backward", parameters(op, True))
edge(FORWARD, y, bottom, False, "y", tensors["y"], shapes["y"], False)
edge(BACKWARD, y, bottom, True, "y", grads["y"], shapes["y"], False)
for source, target in (("ln1", "add1"), ("ln2", "y")):
    middle = top[target] + height[target] / 2
    skip(above[source] + 13, middle, False)
    skip(above[source] + 13, middle, True)
for index, (layout, meaning) in enumerate((("replicated", "replicated: each member has all elements"),
                                           ("sharded 0 1", "sharded: each member has a part"),
                                           ("partial", "partial: addends of a sum"))):
    x = (40, 350, 606)[index]
    glyph(x, 54, layout)
    text(x + 42, 54, meaning, "small")
text(WIDTH / 2, 26, "Layouts in a transformer block with tensor parallelism on two members", "b m")

print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 14}" width="{WIDTH}"'
      f' height="{bottom + 14}">\n<style>{CSS}</style>\n<rect class="bg" width="100%" height="100%"/>')
print("\n".join(svg))
print("</svg>")
