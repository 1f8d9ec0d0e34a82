# SPDX-License-Identifier: Apache-2.0
"""Writes the crate ctrt-sys with the declarations that follow from the public headers.

    generate.py CC INCLUDE VERSION OUT

copies ctrt-sys to OUT and adds OUT/src/bindings.rs: all functions, structs, enums and constants of ctrt/ctrt.h, and
unit tests of sizes and constants. Needs cffi, with its pycparser, and the headers' reader of the Python package."""

import os
import shutil
import sys

import cffi
from pycparser import c_ast, c_parser

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))
import generate as headers              # noqa: E402

# The integer types of stdint.h and stddef.h, which pycparser has to know as types, and those of C.
TYPEDEFS = {
    "bool": "bool", "int8_t": "i8", "uint8_t": "u8", "int16_t": "i16", "uint16_t": "u16", "int32_t": "i32",
    "uint32_t": "u32", "int64_t": "i64", "uint64_t": "u64", "size_t": "usize", "intptr_t": "isize",
    "uintptr_t": "usize",
}
TYPES = {
    "char": "c_char", "signed char": "c_schar", "unsigned char": "c_uchar", "int": "c_int", "unsigned int": "c_uint",
    "unsigned": "c_uint", "short": "c_short", "long": "c_long", "unsigned long": "c_ulong", "long long": "c_longlong",
    "float": "f32", "double": "f64", "void": "c_void",
}
KEYWORDS = """as async await box break const continue crate do dyn else enum extern false fn for final if impl in let
    loop macro match mod move mut override priv pub ref return static struct trait true try type typeof unsafe unsized
    use virtual where while yield abstract become""".split()
OPAQUE = """#[repr(C)]
pub struct %s {
    _data: [u8; 0],
    _marker: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
}
"""


def word(name):
    return "self_" if name == "self" else "r#" + name if name in KEYWORDS else name


def pointer_to(node):
    while isinstance(node, c_ast.ArrayDecl):
        node = node.type
    return "*const " if "const" in node.quals else "*mut "


class Crate:
    def __init__(self, text):
        self.constants, self.structs, self.declared, self.lines, self.functions = {}, {}, [], [], []
        prefix = "".join("typedef int %s;\n" % name for name in TYPEDEFS)
        for node in c_parser.CParser().parse(prefix + text).ext:
            if isinstance(node, c_ast.Typedef) and node.name not in TYPEDEFS:
                self.typedef(node)
            elif isinstance(node, c_ast.Decl):
                if isinstance(node.type, c_ast.FuncDecl):
                    self.functions.append("    pub fn %s%s;" % (node.name, self.signature(node.type)))
                elif isinstance(node.type, c_ast.Enum):
                    self.enum(node.type)
                elif isinstance(node.type, c_ast.Struct):
                    self.struct(node.type)

    # --- expressions of enumerators and array sizes ---

    def value(self, node):
        if isinstance(node, c_ast.Constant):
            return int(node.value.rstrip("uUlL"), 0)
        if isinstance(node, c_ast.ID):
            return self.constants[node.name]
        if isinstance(node, c_ast.UnaryOp):
            return {"-": lambda x: -x, "~": lambda x: ~x, "+": lambda x: x}[node.op](self.value(node.expr))
        if isinstance(node, c_ast.BinaryOp):
            left, right = self.value(node.left), self.value(node.right)
            return {"<<": left << right if right >= 0 else 0, "|": left | right, "+": left + right,
                    "-": left - right, "*": left * right}[node.op]
        raise ValueError("an expression of the headers that is not supported: %s" % type(node).__name__)

    # --- types ---

    def type(self, node):
        """The Rust type of a declarator, of a member or a result."""
        if isinstance(node, c_ast.PtrDecl):
            inner = node.type
            if isinstance(inner, c_ast.FuncDecl):
                return 'Option<unsafe extern "C" fn%s>' % self.signature(inner)
            return pointer_to(inner) + self.type(inner)
        if isinstance(node, c_ast.ArrayDecl):
            return "[%s; %d]" % (self.type(node.type), self.value(node.dim))
        if isinstance(node, c_ast.TypeDecl):
            return self.type(node.type)
        if isinstance(node, c_ast.IdentifierType):
            name = " ".join(node.names)
            return TYPEDEFS.get(name) or TYPES.get(name) or name
        if isinstance(node, c_ast.Enum):
            return "c_int"
        if isinstance(node, c_ast.Struct):
            self.struct(node)
            return node.name
        raise ValueError("a type of the headers that is not supported: %s" % type(node).__name__)

    def parameter(self, node):
        if isinstance(node, c_ast.EllipsisParam):
            return "..."
        kind = node.type
        if isinstance(kind, c_ast.ArrayDecl):       # a parameter that is an array is a pointer
            text = pointer_to(kind.type) + self.type(kind.type)
        elif isinstance(kind, c_ast.FuncDecl):
            text = 'Option<unsafe extern "C" fn%s>' % self.signature(kind)
        else:
            text = self.type(kind)
        return "%s: %s" % (word(node.name or "_"), text)

    def signature(self, node):
        parameters = [self.parameter(p) for p in node.args.params] if node.args else []
        if parameters == ["_: c_void"]:
            parameters = []
        result = self.type(node.type)
        return "(%s)%s" % (", ".join(parameters), "" if result == "c_void" else " -> " + result)

    # --- declarations ---

    def enum(self, node):
        following = 0
        for item in node.values.enumerators if node.values else []:
            following = self.value(item.value) if item.value else following
            self.constants[item.name] = following
            if not item.name.endswith("_"):
                kind = node.name or "c_int"
                self.lines.append("pub const %s: %s = %d;" % (item.name, kind, following))
            following += 1

    def struct(self, node):
        """Declares the struct at its definition; a struct without one is opaque."""
        if node.name.endswith("_"):
            return                      # of a macro of the headers
        self.structs.setdefault(node.name, None)
        if node.decls is None:
            return
        members = [(member.name, self.type(member.type)) for member in node.decls]
        self.structs[node.name] = members

    def typedef(self, node):
        inner = node.type.type if isinstance(node.type, c_ast.TypeDecl) else None
        if isinstance(inner, c_ast.Struct):
            inner.name = inner.name or node.name
            self.struct(inner)
            if inner.name != node.name:
                self.lines.append("pub type %s = %s;" % (node.name, inner.name))
        elif isinstance(inner, c_ast.Enum):
            inner.name = node.name
            self.lines.append("pub type %s = c_int;" % node.name)
            self.enum(inner)
        elif isinstance(node.type, c_ast.FuncDecl):
            self.lines.append('pub type %s = unsafe extern "C" fn%s;' % (node.name, self.signature(node.type)))
        else:
            self.lines.append("pub type %s = %s;" % (node.name, self.type(node.type)))


def literal(kind, value):
    """The Rust expression of a member's default."""
    if isinstance(value, list):
        element = kind[1:].rsplit(";", 1)[0]
        count = int(kind.rsplit(";", 1)[1].rstrip("]"))
        value = value + [0] * (count - len(value))
        return "[%s]" % ", ".join(literal(element, v) for v in value)
    if isinstance(value, str):
        return value
    if kind == "bool":
        return "true" if value else "false"
    return repr(float(value)) if kind in ("f32", "f64") else repr(int(value))


def defaults(name, members, values):
    lines = ["impl Default for %s {" % name, "    /// What the macro %s has in C." % name.upper(),
             "    fn default() -> Self {"]
    lines.append("        let %svalue: Self = unsafe { core::mem::zeroed() };" % "mut ")
    lines.append("        value.%s = core::mem::size_of::<Self>();" % members[0][0])
    for (member, kind), value in zip(members[1:], values):
        if value not in (0, False) or isinstance(value, list):
            lines.append("        value.%s = %s;" % (word(member), literal(kind, value)))
    return lines + ["        value", "    }", "}", ""]


def generate(cc, include, version, out):
    text, macros = headers.preprocessed(cc, include)
    text = headers.without_bodies(text)
    crate = Crate(text)
    ffi = cffi.FFI()
    ffi.cdef(headers.DLPACK + text)
    values = headers.initializers(macros)
    lines = ["// Generated by generate.py from the headers of ctrt %s." % version, ""] + crate.lines + [""]
    for name, number in headers.re.findall(r"^#define (CTRT_\w*[A-Z0-9]) \(?(-?\d+)\)?$", macros, headers.re.M):
        lines.append("pub const %s: c_int = %s;" % (name, number))
    layouts = []
    for name, members in crate.structs.items():
        if members is None:
            lines.append(OPAQUE % name)
            continue
        lines += ["#[repr(C)]", "#[derive(Clone, Copy)]", "pub struct %s {" % name]
        lines += ["    pub %s: %s," % (word(member), kind) for member, kind in members] + ["}", ""]
        layouts.append("        assert_eq!(core::mem::size_of::<%s>(), %d);" % (name, ffi.sizeof(name)))
        if members[0][0] in ("size", "initialized") and "#define %s " % name.upper() in macros:
            lines += defaults(name, members, values.get(name, []))
    lines += ['extern "C" {'] + crate.functions + ["}", "", "#[cfg(test)]", "mod layout {", "    use super::*;",
              "    #[test]", "    fn sizes() {"] + layouts + ["    }"]
    lines += ["    #[test]", "    fn constants() {", "        let expected: &[(&str, i64)] = &["]
    lines += ['            ("%s", %d),' % item for item in crate.constants.items() if not item[0].endswith("_")]
    lines += ["        ];", "        for (name, value) in expected {", "            let mut found = 0;",
              "            let c_name = std::ffi::CString::new(*name).unwrap();",
              "            let status = unsafe { ctrt_constant_find(&mut found, c_name.as_ptr()) };",
              "            assert_eq!((name, status, found), (name, CTRT_OK, *value));", "        }", "    }", "}"]
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(os.path.join(HERE, "ctrt-sys"), out)
    with open(os.path.join(out, "src", "bindings.rs"), "w") as file:
        file.write("\n".join(lines) + "\n")
    manifest = os.path.join(out, "Cargo.toml")
    with open(manifest + ".in") as file:
        described = file.read().replace("@VERSION@", version)
    with open(manifest, "w") as file:
        file.write(described)
    os.remove(manifest + ".in")


if __name__ == "__main__":
    generate(*sys.argv[1:])
