#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the layout of every struct and the value of every constant of ctrt/plugin.h, as compiled on this machine, in
the format that test-abi.c includes:  pin.py INCLUDE_FOLDER > plugin-1.N.def

Run it once for each new minor version of the ABI. Do not change the files of earlier versions."""
import os
import re
import subprocess
import sys
import tempfile
import textwrap

include = sys.argv[1]
source = "".join(open(os.path.join(include, "ctrt", name)).read() for name in ("types.h", "plugin.h"))
source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)


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


lines = []
for tag, body, name in re.findall(r"typedef struct (\w+) \{(.*?)\} (\w+);", source, flags=re.S):
    names = list(fields(body))
    kind = "GROWS" if names[0] == "size" else "FIXED"
    lines.append(f'printf("{kind}({name}, %zu)\\n", sizeof({name}));')
    for field in names:
        lines.append(f'printf("FIELD({name}, {field}, %zu, %zu)\\n", offsetof({name}, {field}), '
                     f'sizeof ((({name} *)0)->{field}));')
kinds = "VIEW|KERNEL|DEVICE|LINK|COPY|COMPONENT|PARAM|LOG|SCALAR"
constants = set(re.findall(rf"\b(CTRT_(?:{kinds})_[A-Z0-9_]+)\b", source))
constants -= {"CTRT_DEVICE_", "CTRT_COMPONENT_KIND_MAX_"}
for name in ("status", "dtype"):
    text = open(os.path.join(include, "ctrt", name + ".def")).read()
    constants |= {"CTRT_" + word for word in re.findall(rf"^{name.upper()}\((\w+)", text, flags=re.M)}
constants.add("CTRT_MAX_DIMS")
for name in sorted(c for c in constants if not c.endswith("_")):
    lines.append(f'printf("CONSTANT({name}, %d)\\n", (int){name});')

with tempfile.TemporaryDirectory() as folder:
    program = os.path.join(folder, "pin.c")
    with open(program, "w") as out:
        out.write("#include <stdio.h>\n#include <stddef.h>\n#include \"ctrt/plugin.h\"\n")
        out.write("int main(void)\n{\n" + "\n".join(lines) + "\n}\n")
    subprocess.check_call([os.environ.get("CC", "cc"), "-I", include, program, "-o", os.path.join(folder, "pin")])
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Made by pin.py; never changed once the version is released. */")
    pins = subprocess.check_output([os.path.join(folder, "pin")], text=True).replace(", ", ",~")
    structs, constants = re.fullmatch(r"(.*?)(^CONSTANT.*)", pins, flags=re.S | re.M).groups()
    for paragraph in re.split(r"\n(?=FIXED|GROWS)", structs) + [constants]:
        print(textwrap.fill(paragraph, 118, break_on_hyphens=False).replace("~", " "))
