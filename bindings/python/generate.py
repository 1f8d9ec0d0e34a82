# SPDX-License-Identifier: Apache-2.0
"""Generates the part of the package that follows from the public headers.

    generate.py CC INCLUDE VERSION SONAME OUT

writes OUT/_cdef.py, the declarations for cffi, and OUT/api.py, a Python function for each C function of ctrt/ctrt.h:
out-parameters become results, options become keyword arguments, and a status that is an error becomes an exception."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile

import cffi

# ctrt/tensor.h declares the struct only; these are the definitions of DLPack 1.0 and those of versions before it.
DLPACK = """
typedef struct { int32_t device_type, device_id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t *shape, *strides; uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor; void *manager_ctx; void (*deleter)(struct DLManagedTensor *);
} DLManagedTensor;
struct DLManagedTensorVersioned {
    struct { uint32_t major, minor; } version;
    void *manager_ctx; void (*deleter)(struct DLManagedTensorVersioned *); uint64_t flags; DLTensor dl_tensor;
};
void free(void *);
"""

# Functions whose parameters do not follow from their types: arrays that the call fills. The package has its own forms
# of some of them; all are in ctrt.lib.
ARRAYS = """chunk grad function_apply loader_next dataset_get optimizer_tensors optimizer_get_state queue_get queue_put
    device_get_processes pick_devices sampler_order queue_descriptors module_sha256 store_get store_compare_set
    parallel_scatter parallel_gather parallel_apply scatter gather_tensors replicate sample_random_start
    memory_owners to_dlpack from_dlpack float int bool ints_of modules_of""".split()
TAKEN = {"sequential_add": "module", "module_add_module": "child"}      # parameters whose reference the callee releases
NOT_OPS = "tensor module optimizer function grad forward parallel comm from read loss".split()      # first words
NUMBERS = "int int8_t uint8_t int32_t uint32_t int64_t uint64_t size_t float double bool".split()
NAMES = {"x": "input", "dims": "dim", "epsilon": "eps", "first_dim": "start_dim", "last_dim": "end_dim"}
KEYWORDS = {"from": "from_", "in": "in_", "lambda": "lambda_", "class": "class_"}
DEFAULTS = {
    "device": "None", "dtype": "None", "dim": "None", "keepdim": "False", "bias": "None", "mask": "None",
    "eps": "1e-5", "diagonal": "0", "correction": "1", "strategy": "None", "options": "None",
    "format": "1", "reduction": "'mean'", "tanh_approximation": "False", "training": "True", "retain_graph": "False",
    "create_graph": "False", "set_to_none": "True", "persistent": "True", "padding_idx": "-1", "start_dim": "0",
    "end_dim": "-1", "copy": "False", "priority": "0", "timing": "False", "abbreviated": "False", "device_type": "None",
    "stream": "None", "new_scale": "0.0",
}


def preprocessed(cc, include):
    """Returns the declarations of ctrt/ctrt.h and the lines of its #defines, without comments."""
    with tempfile.TemporaryDirectory() as empty:
        for name in ("stdbool.h", "stddef.h", "stdint.h"):
            open(os.path.join(empty, name), "w").close()
        # Without __GNUC__ the headers have no attributes and no statement expressions.
        command = shlex.split(cc) + ["-E", "-P", "-nostdinc", "-U__GNUC__", "-I" + empty, "-I" + include]
        source = os.path.join(include, "ctrt", "ctrt.h")
        text, macros = (
            subprocess.run(command + more + ["-x", "c", source], check=True, stdout=subprocess.PIPE, text=True).stdout
            for more in ([], ["-dM"])
        )
    return text, macros


def without_bodies(text):
    """Replaces inline functions by their declarations; drops those whose name ends in '_', which are not exported."""
    while True:
        found = re.search(r"static inline ([^{;]*?\b(\w+)\([^{;]*\))\s*{", text)
        if not found:
            return text
        depth, end = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + ("" if found[2].endswith("_") else found[1] + ";") + text[end:]


def statements(text):
    """The declarations of the text at file scope."""
    depth = start = 0
    for i, letter in enumerate(text):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(letter, 0)
        if letter == ";" and depth == 0:
            yield " ".join(text[start:i].split())
            start = i + 1


def split_parameters(text):
    depth, start, found = 0, 0, []
    for i, letter in enumerate(text + ","):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            one = text[start:i].strip()
            start = i + 1
            if one == "..." or "(*" in one:
                name = re.search(r"\(\*(\w+)", one)
                found.append(("callback", name[1] if name else "more"))
            elif one != "void":
                kind, name = re.match(r"(.*?)(\w+)(?:\[\d*\])?$", one).groups()
                found.append((kind.strip() + (" *" if one.endswith("]") else ""), name))
    return found


class Function:
    """Writes the Python function of one C function."""

    def __init__(self, result, name, parameters, handles, structs, enums):
        self.result, self.name, self.parameters = result, name, parameters
        self.handles, self.structs, self.enums = handles, structs, enums
        self.before, self.arguments, self.python, self.results = [], [], [], []

    def parameter(self, index):
        """Converts parameter `index` and returns the index of the next one."""
        kind, name = self.parameters[index]
        c_name = name
        name = NAMES.get(name, KEYWORDS.get(name, name))
        base = kind.replace("const", "").replace("*", "").replace("struct ", "").strip()
        stars, last = kind.count("*"), index == len(self.parameters) - 1
        following = self.parameters[index + 1] if not last else ("", "")
        value = name
        if stars == 2 and base in self.handles and self.name.endswith("_end"):
            self.python.append(name)        # the call releases it
            value = name + "._p"
        elif stars == 2 and base in self.handles and "const" not in kind:
            self.before.append("%s = new('%s **')" % (name, base))
            action = "share" if name == "borrowed" else "take"
            self.results.append("%s('%s', %s)" % (action, base[5:], name))
        elif stars == 2 and base == "ctrt_device" and "const" not in kind:
            self.before.append("%s = new('ctrt_device **')" % name)
            self.results.append("device_result(%s[0])" % name)
        elif stars == 2 and base == "char":
            self.before.append("%s = new('char **')" % name)
            self.results.append("%s(%s[0])" % ("text_result" if "const" in kind else "text_taken", name))
        elif stars == 2 and "*const *" in kind and following[0] in ("int", "size_t"):
            self.python.append(name)
            self.before.append("%s_ = array_arg('%s', %s)" % (name, base, name))
            self.arguments += [name + "_", "len(%s_)" % name]
            return index + 2
        elif stars == 1 and "const" not in kind and (base in NUMBERS or base in self.enums):
            self.before.append("%s = new('%s *')" % (name, base))
            self.results.append("dtype_result(%s[0])" % name if base == "ctrt_dtype" else "%s[0]" % name)
        elif stars == 1 and "const" not in kind and base in self.structs:
            self.before.append("%s = sized('%s')" % (name, base))
            self.results.append("number_result(%s[0])" % name if base == "ctrt_scalar" else name)
        else:
            self.python.append(name)
            if stars == 1 and base in self.handles:
                value = "handle_arg(%s)" % name
                if TAKEN.get(self.name) == c_name:
                    value = "lib.%s_retain(%s)" % (base, value)
            elif stars == 1 and base == "ctrt_device":
                value = "device_arg(%s)" % name
            elif stars == 2 and "*const *" in kind:
                self.before.append("%s_ = array_arg('%s', %s)" % (name, base, name))
                value = name + "_"
            elif stars == 1 and base in self.structs:
                if base.endswith("_options"):
                    self.python[-1] = "**options"
                    name = "options"
                self.before.append("%s_ = options_arg('%s', %s)" % (name, base, name))
                value = name + "_"
            elif kind == "const char *":
                value = "text_arg(%s)" % name
            elif kind == "ctrt_ints":
                self.before.append("%s_, %s_values = ints_arg(%s)" % (name, name, name))
                value = name + "_"
            elif kind == "ctrt_scalar":
                value = "scalar_arg(%s)" % name
            elif kind == "ctrt_dtype":
                value = "dtype_arg(%s)" % name
            elif kind in self.enums:
                value = "enum_arg('%s', %s)" % (kind, name)
            elif stars or kind == "callback":
                value = "NULL if %s is None else %s" % (name, name)
        self.arguments.append(value)
        return index + 1

    def signature(self):
        kinds = {NAMES.get(name, name): (kind, name) for kind, name in self.parameters}
        found, optional = [], True
        for name in reversed(self.python):
            kind = kinds.get(name, ("", ""))[0]
            if name == "**options":
                found.insert(0, name)
                continue
            default = DEFAULTS.get(name)
            if name == "dim" and kind != "ctrt_ints":
                default = "0" if self.name in ("cat", "stack") else None
            elif name == "bias" and kind == "bool":
                default = "True"
            optional = optional and default is not None
            found.insert(0, "%s=%s" % (name, default) if optional else name)
        options = [name for name in found if name == "**options"]
        return ", ".join([name for name in found if name != "**options"] + options)

    def text(self):
        index = 0
        while index < len(self.parameters):
            index = self.parameter(index)
        call = "lib.ctrt_%s(%s)" % (self.name, ", ".join(self.arguments))
        prototype = "%s ctrt_%s(%s)" % (self.result, self.name, ", ".join("%s %s" % p for p in self.parameters))
        base = self.result.replace("const", "").replace("*", "").strip()
        if self.result == "ctrt_status":
            body = ["check(%s)" % call]
            if not self.results and self.name.endswith("_") and self.parameters[0][0] == "ctrt_tensor *":
                self.results = [self.python[0]]
        else:
            body = ["result = " + call]
            wrapped = "result"
            if "*" in self.result and base in self.handles:
                wrapped = "share('%s', new('%s **', result))" % (base[5:], base)
            elif base == "ctrt_device":
                wrapped = "device_result(result)"
            elif self.result.replace("const", "").strip() == "char *":
                wrapped = "text_result(result)"
            elif self.result == "ctrt_dtype":
                wrapped = "dtype_result(result)"
            self.results.insert(0, wrapped)
            if self.result == "void":
                body, self.results = [call], self.results[1:]
        if self.results:
            body.append("return " + ", ".join(self.results))
        lines = ["def %s(%s):" % (self.name, self.signature()), '"""%s"""' % re.sub(r"\* ", "*", prototype)]
        return "\n    ".join(lines + self.before + body)


def initializers(macros):
    """The members after the size of the initializers of structs whose defaults are not 0."""
    found = {}
    for name, values in re.findall(r"#define CTRT_(\w+) \{ *sizeof ?\(\w+\), ?(.*?) *\}$", macros, flags=re.M):
        for word in ("true", "false"):
            values = re.sub(r"\b%s\b" % word, word.capitalize(), values)
        values = re.sub(r"\b(CTRT_\w+)", r"'\1'", values.replace("{", "[").replace("}", "]"))
        found["ctrt_" + name.lower()] = eval("[%s]" % values)
    return found


def generate(cc, include, version, soname, out):
    text, macros = preprocessed(cc, include)
    text = without_bodies(text)
    ffi = cffi.FFI()
    ffi.cdef(DLPACK + text)
    ffi.set_source("ctrt._cdef", None)
    with contextlib.redirect_stdout(io.StringIO()):
        ffi.emit_python_code(os.path.join(out, "_cdef.py"))

    found, names = list(statements(text)), []
    structs = set(re.findall(r"}\s*(ctrt_\w+)$", "\n".join(f for f in found if f.startswith("typedef struct")), re.M))
    enums = set(re.findall(r"^typedef enum .*} (ctrt_\w+)$", "\n".join(found), flags=re.M))
    handles = set(re.findall(r"\bvoid ctrt_(\w+)_release\(ctrt_\1 \*\*", text))
    rows, statuses = (
        re.findall(pattern, open(os.path.join(include, "ctrt", name)).read(), flags=re.M)
        for name, pattern in (("dtype.def", r'^DTYPE\((\w+), +\d+, +(\d+), +(\w+), +"(\w+)", .*"(\w+)"\)'),
                              ("status.def", r"^STATUS\((ERR_\w+), *(-\d+)"))
    )
    pieces, tensor_functions = [], []
    for statement in found:
        match = re.match(r"((?:const )?\w[\w ]*?[ *]+)(ctrt_(\w+))\s*\((.*)\)$", statement)
        if not match or statement.startswith("typedef"):
            continue
        name = match[3]
        if name in ARRAYS or name.endswith(("_release", "_retain")) or "ctrt_loader_next" == name:
            continue
        function = Function(match[1].strip(), name, split_parameters(match[4]), {"ctrt_" + h for h in handles}, structs,
                            enums)
        pieces.append(function.text())
        names.append(name)
        first = [kind for kind, _ in function.parameters if kind != "ctrt_tensor **"][:1]
        kinds = [kind for kind, _ in function.parameters]
        if ((function.parameters[:1] == [("ctrt_tensor *", "self")] or kinds[:1] == ["ctrt_tensor **"])
                and "_scalar" not in name[1:] and name.split("_")[0] not in NOT_OPS):
            tensor_functions.append((name, first == ["ctrt_tensor *"]))
    for name in names:
        if name + "_scalar" in names:
            pieces.append("%s = tensor_or_scalar(%s, %s_scalar)" % (name, name, name))
        elif name.endswith("_scalar_") and name[:-8] + "_" in names:
            pieces.append("%s_ = tensor_or_scalar(%s_, %s)" % (name[:-8], name[:-8], name))
    with open(os.path.join(out, "api.py"), "w") as file:
        file.write("# Generated by generate.py from the headers of ctrt %s.\n" % version)
        file.write('"""The functions of libctrt, without ctrt_ in front of the name."""\n\n')
        file.write("from ._core import *\n\n" + "\n\n\n".join(pieces) + "\n")
        file.write("\n# Functions that return or change tensors, and whether they are methods.\n")
        file.write("TENSOR_FUNCTIONS = %r\n" % dict(tensor_functions))
    with open(os.path.join(out, "_tables.py"), "w") as file:
        file.write("# Generated by generate.py from the headers of ctrt %s.\n" % version)
        for name, value in (("VERSION", version), ("SONAME", soname), ("DTYPES", rows), ("STATUSES", statuses),
                            ("HANDLES", sorted(handles)), ("INITIALIZERS", initializers(macros))):
            file.write("%s = %r\n" % (name, value))


if __name__ == "__main__":
    generate(*sys.argv[1:])
