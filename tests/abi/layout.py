#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the layout of every struct and the value of every constant of ctrt/plugin.h in two include folders, as
compiled on this machine, and prints the differences:  layout.py OLD NEW

Structs whose first member is their size may be extended at the end. Everything else in OLD must be the same in NEW,
because plugins that were built with OLD use those offsets and values."""
import os
import re
import subprocess
import sys
import tempfile


def fields(body):
    """Yields the names of a struct's members, for example of `int64_t a[2], b;` and `ctrt_status (*run)(...);`."""
    for declaration in body.split(";"):
        slot = re.search(r"\(\*(\w+)\)\s*\(", declaration)
        if slot:
            yield slot.group(1)
            continue
        for piece in re.sub(r"\[[^\]]*\]", "", declaration).split(","):
            words = re.findall(r"\w+", piece)
            if words:
                yield words[-1]


def names_of(include):
    """Returns what an include folder declares: {"struct": (members, whether it may grow)} and a set of constants."""
    source = "".join(open(os.path.join(include, "ctrt", name)).read() for name in ("types.h", "plugin.h"))
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    structs = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", source, flags=re.S):
        members = list(fields(body))
        structs[name] = (members, members[0] == "size")
    kinds = "VIEW|KERNEL|DEVICE|LINK|COPY|COMPONENT|PARAM|LOG|SCALAR"
    constants = set(re.findall(rf"\b(CTRT_(?:{kinds})_[A-Z0-9_]+)\b", source))
    constants |= {"CTRT_MAX_DIMS", "CTRT_PLUGIN_ABI_MAJOR"}
    for name in ("status", "dtype"):
        text = open(os.path.join(include, "ctrt", name + ".def")).read()
        constants |= {"CTRT_" + word for word in re.findall(rf"^{name.upper()}\((\w+)", text, flags=re.M)}
    return structs, {name for name in constants if not name.endswith("_")}


def values_of(include, structs, constants):
    """Compiles a program with the headers in `include` and returns its numbers: sizes, offsets, values."""
    wanted = {f"sizeof({name})": f"sizeof({name})" for name in structs}
    wanted.update({name: name for name in constants})
    for name, (members, _) in structs.items():
        for member in members:
            wanted[f"offset of {name}.{member}"] = f"offsetof({name}, {member})"
            wanted[f"size of {name}.{member}"] = f"sizeof((({name} *)0)->{member})"
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        with open(source, "w") as out:
            out.write("#include <stdio.h>\n#include <stddef.h>\n#include \"ctrt/plugin.h\"\nint main(void)\n{\n")
            out.writelines(f'    printf("{key}=%lld\\n", (long long)({value}));\n' for key, value in wanted.items())
            out.write("}\n")
        subprocess.check_call([os.environ.get("CC", "cc"), "-w", "-I", include, source, "-o", program])
        lines = subprocess.check_output([program], text=True).splitlines()
    return {key: int(value) for key, value in (line.rsplit("=", 1) for line in lines)}


old, new = sys.argv[1:3]
declared = names_of(old)
then, now = values_of(old, *declared), values_of(new, *declared)
may_grow = {f"sizeof({name})" for name, (_, grows) in declared[0].items() if grows}
for what, value in then.items():
    if now[what] < value or (now[what] != value and what not in may_grow):
        print(f"{what} is {now[what]}, was {value}")
