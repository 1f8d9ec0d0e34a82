#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the public headers with those of a frozen version of the ABI, as doc/abi.md explains.

    abi.py table INCLUDE                   prints the sizes and offsets of all structs and the values of all constants
    abi.py strip FILE                      prints a header without comments and empty lines
    abi.py compare VERSION INCLUDE WORK    compares with VERSION/table.txt and prints what is incompatible; writes
                                           WORK/then.c and WORK/now.c, whose types abidiff compares

VERSION and INCLUDE contain the folder ctrt of the headers (VERSION in its folder include). then.c and now.c export a
pointer to each struct and each function of VERSION. In now.c, structs and enums have the members of VERSION only."""
import os
import re
import subprocess
import sys

CC = os.environ.get("CC", "cc").split()


def compile_text(include, source, *options):
    """Returns what the compiler writes to its standard output."""
    return subprocess.run([*CC, "-w", "-I", include, *options, "-x", "c", "-"], input=source, text=True,
                          stdout=subprocess.PIPE, check=True).stdout


def all_of(include):
    """Returns a source that includes all headers."""
    names = sorted(name for name in os.listdir(os.path.join(include, "ctrt")) if name.endswith(".h"))
    return "".join(f"#include <ctrt/{name}>\n" for name in names)


def strip(text):
    comments_and_strings = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"|//[^\n]*', flags=re.S)
    text = comments_and_strings.sub(lambda match: match.group(0) if match.group(0)[0] == '"' else " ", text)
    return "".join(line.rstrip() + "\n" for line in text.split("\n") if line.strip())


def without_inline(text):
    """Removes the inline functions, which may use what now.c does not have."""
    kept, at = [], 0
    for match in re.finditer(r"static inline [^{;]*\{", text):
        end, depth = match.end(), 1
        while depth > 0:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        kept.append(text[at:match.start()])
        at = end
    return "".join(kept) + text[at:]


class Headers:
    STRUCT = re.compile(r"typedef struct (ctrt_\w+) \{([^{}]*)\} \1;")
    ENUM = re.compile(r"enum(?: ctrt_\w+)? \{([^{}]*)\}")

    def __init__(self, include):
        self.include = include
        self.text = re.sub(r"\s+", " ", without_inline(compile_text(include, all_of(include), "-E", "-P")))
        macros = re.findall(r"^#define (CTRT_\w+) ([-0-9x. ()uf]*[0-9][-0-9a-fx. ()u]*)$",
                            compile_text(include, all_of(include), "-E", "-dM"), flags=re.M)
        self.structs = {name: dict(self.members(body)) for name, body in self.STRUCT.findall(self.text)}
        unread = set(re.findall(r"typedef (?:struct|union) (ctrt_\w+) \{", self.text)) - set(self.structs)
        if unread:
            sys.exit(f"abi.py cannot read the members of {sorted(unread)}")
        self.functions = set(re.findall(r'visibility\("default"\)\)\) [^;]*?\b(ctrt_\w+)\s*\(', self.text))
        self.enumerators = {self.word(item) for body in self.ENUM.findall(self.text) for item in body.split(",")}
        # Names that end in "_" are not for programs; the number of items grows with them.
        self.constants = {name for name in self.enumerators | {name for name, _ in macros}
                          if name.startswith("CTRT_") and not name.endswith(("_", "_COUNT", "_ABI_MINOR"))}

    @staticmethod
    def word(item):
        return re.match(r"\s*(\w*)", item).group(1)

    @staticmethod
    def members(body):
        """Yields the name and the declaration of each member, for example of `int64_t a[2], b;`."""
        for declaration in body.split(";"):
            slot = re.search(r"\(\*\s*(\w+)(?:\[\w*\])?\)\s*[([]", declaration)
            if slot:
                yield slot.group(1), declaration
                continue
            first, *more = declaration.split(",")
            name = r"(\w+)\s*(?:\[[^\]]*\]\s*)*$"
            begin = re.match(r"\s*(.*?)(?:\*(?:\s|\*|const\b)*)?\b" + name, first)
            if begin is None:
                continue
            yield begin.group(2), first
            for other in more:
                yield re.search(name, other).group(1), begin.group(1) + " " + other

    def table(self):
        """Returns {"ctrt_view": "160 fixed", "ctrt_view.data": "0 8", "CTRT_F32": "3"}. The compiler writes the numbers
        into the assembly, which is not run, so that another machine's compiler can be used."""
        lines = []

        def number(text, *values):
            operands = ", ".join(f'"i"({value})' for value in values)
            lines.append(f'__asm__ volatile(".ascii \\"->{text}\\"" :: {operands});')
        for name, members in self.structs.items():
            grows = "grows" if next(iter(members)) in ("size", "initialized") else "fixed"
            number(f"{name} %0 {grows}", f"sizeof({name})")
            for member in members:
                number(f"{name}.{member} %0 %1", f"offsetof({name}, {member})", f"sizeof((({name} *)0)->{member})")
        for name in sorted(self.constants):
            number(f"{name} %0", f"(long long)({name})")
        source = all_of(self.include) + "void table(void)\n{\n" + "\n".join(lines) + "\n}\n"
        printed = compile_text(self.include, source, "-S", "-o", "-")
        found = re.findall(r'\.ascii\s+"->(\S+) (.*)"', printed)
        return {what: re.sub(r"[$#]", "", value) for what, value in found}

    def as_in(self, then):
        """Returns the text in which structs and enums have the members that they have in `then`. Reserved members, of
        which later versions make others, are those of `then`."""
        def struct(match):
            name = match.group(1)
            if name not in then.structs:
                return match.group(0)
            now = self.structs[name]
            body = ";".join(declaration if member.startswith("reserved") else now.get(member, "")
                            for member, declaration in then.structs[name].items())
            return f"typedef struct {name} {{ {body}; }} {name};"

        def enum(match):
            kept = [item for item in match.group(1).split(",") if self.word(item) in then.enumerators]
            return match.group(0).replace(match.group(1), ",".join(kept)) if kept else match.group(0)
        return self.ENUM.sub(enum, self.STRUCT.sub(struct, self.text))


def surface(path, text, then, now):
    """Writes a source that exports what both versions have."""
    export = '__attribute__((visibility("default")))'
    with open(path, "w") as out:
        out.write(text.replace("; ", ";\n") + "\n")
        out.writelines(f"{export} {name} *show_{name};\n" for name in then.structs if name in now.structs)
        both = sorted(then.functions & now.functions)
        out.writelines(f"{export} __typeof__(&{name}) show_{name};\n" for name in both)


def compare_tables(table, now):
    """Yields what is incompatible in the layout of structs and the values of constants."""
    sizes = {what: int(value.split()[0]) for what, value in table.items() if re.match(r"ctrt_\w+$", what)}
    for what, value in table.items():
        if "." in what and what.split(".")[1].startswith("reserved"):
            continue
        if what not in now:
            yield f"{what} is missing"
        elif what not in sizes:
            if now[what] != value:
                names = ("offset and size of ", "are", "were") if "." in what else ("", "is", "was")
                yield f"{names[0]}{what} {names[1]} {now[what]}, {names[2]} {value}"
        elif now[what].split()[1] != value.split()[1]:
            yield f"{what}: its first member was {'not ' if 'fixed' in value else ''}its size"
        elif int(now[what].split()[0]) < sizes[what] or ("fixed" in value and now[what] != value):
            yield f"size of {what} is {now[what].split()[0]}, was {sizes[what]}"
    for what, value in now.items():
        struct = what.split(".")[0]
        if struct == what or what in table or struct not in sizes:
            continue
        offset, size = map(int, value.split())
        if offset < sizes[struct] and not in_reserved(table, struct, offset, size):
            yield f"{what} is new at offset {offset}, but the struct had {sizes[struct]} bytes"


def in_reserved(table, struct, offset, size):
    """Returns whether these bytes were those of reserved members."""
    spans = [tuple(map(int, value.split())) for what, value in table.items()
             if what.startswith(struct + ".reserved")]
    return any(begin <= offset and offset + size <= begin + length for begin, length in spans)


def compare(version, include, work):
    then, now = Headers(os.path.join(version, "include")), Headers(include)
    with open(os.path.join(version, "table.txt")) as file:
        table = dict(line.split(" ", 1) for line in file.read().splitlines() if not line.startswith("#"))
    for line in compare_tables(table, now.table()):
        print(line)
    for name in sorted(then.functions - now.functions):
        print(f"the function {name} is missing")
    surface(os.path.join(work, "then.c"), then.text, then, now)
    surface(os.path.join(work, "now.c"), now.as_in(then), then, now)


if sys.argv[1:2] == ["table"] and len(sys.argv) == 3:
    for what, value in Headers(sys.argv[2]).table().items():
        print(what, value)
elif sys.argv[1:2] == ["strip"] and len(sys.argv) == 3:
    with open(sys.argv[2]) as file:
        print(strip(file.read()), end="")
elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 5:
    compare(*sys.argv[2:])
else:
    sys.exit(__doc__)
