# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel from a build tree, with the standard library and cffi only.

    build_wheel.py [--build FOLDER] [--out FOLDER] [--cc COMMAND] [--strip COMMAND] [--readelf COMMAND]

FOLDER is the build tree (default: ../../_build beside this folder), the wheel is written to its folder python. The
wheel contains libctrt, the command ctrt and the plugins that need only libctrt and the C library."""

import argparse
import base64
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

import generate

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
BASE = ("libctrt.so", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux", "libgcc_s.so")
DATE = (2020, 1, 1, 0, 0, 0)            # the same files give the same wheel


def needed(readelf, path):
    """The libraries that an object needs, and its own soname."""
    text = subprocess.run([readelf, "-dW", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    soname = re.search(r"\(SONAME\).*\[(.*)\]", text)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text), soname and soname[1]


def version():
    """The version of the package, which AC_INIT of configure.ac has."""
    return re.search(r"AC_INIT\(\[ctrt\], \[(.*?)\]", open(os.path.join(ROOT, "configure.ac")).read())[1]


def collect(options, folder):
    """Writes the files of the wheel to `folder`; returns the names of plugins that are left out."""
    package = os.path.join(folder, "ctrt")
    os.makedirs(package)
    for source in glob.glob(os.path.join(HERE, "ctrt", "*.py")):
        shutil.copyfile(source, os.path.join(package, os.path.basename(source)))
    library = os.path.join(options.build, ".libs", "libctrt.so")
    soname = needed(options.readelf, library)[1]
    abi = re.search(r"CTRT_PLUGIN_ABI\], \[(\d+)\]", open(os.path.join(ROOT, "configure.ac")).read())[1]
    plugins, left_out = os.path.join(package, "lib", "ctrt", abi), []
    os.makedirs(plugins)
    os.makedirs(os.path.join(package, "bin"))
    binaries = [shutil.copy(library, os.path.join(package, "lib", soname))]
    for plugin in sorted(glob.glob(os.path.join(options.build, "plugins-built", "*.so"))):
        if all(name.startswith(BASE) for name in needed(options.readelf, plugin)[0]):
            binaries.append(shutil.copy(plugin, plugins))
        else:
            left_out.append(os.path.basename(plugin)[:-3])
    for command in (".libs/ctrt", "ctrt"):
        if os.path.exists(os.path.join(options.build, command)):
            binaries.append(shutil.copy(os.path.join(options.build, command), os.path.join(package, "bin", "ctrt")))
            break
    for binary in binaries:
        os.chmod(binary, 0o755)
        subprocess.run([options.strip, "--strip-unneeded", binary], check=True)
    generate.generate(options.cc, os.path.join(ROOT, "include"), version(), soname, package)
    return left_out


def metadata(folder, tag):
    name = os.path.join(folder, "ctrt-%s.dist-info" % version())
    os.makedirs(name)
    files = {
        "METADATA": "Metadata-Version: 2.1\nName: ctrt\nVersion: %s\nSummary: A tensor runtime: tensors, autograd, "
                    "modules, optimizers, plugins\nLicense: Apache-2.0\nRequires-Python: >=3.8\nRequires-Dist: "
                    "cffi>=1.15\nRequires-Dist: numpy; extra == 'numpy'\nProvides-Extra: numpy\n" % version(),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: ctrt\nRoot-Is-Purelib: false\nTag: %s\n" % tag,
        "entry_points.txt": "[console_scripts]\nctrt = ctrt.runtime:command\n",
    }
    for file, content in files.items():
        with open(os.path.join(name, file), "w") as out:
            out.write(content)
    shutil.copyfile(os.path.join(ROOT, "LICENSE"), os.path.join(name, "LICENSE"))
    return name


def pack(folder, info, path):
    record, files = [], []
    for top, folders, names in os.walk(folder):
        folders.sort()
        files += [os.path.join(top, name) for name in sorted(names)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)

        for file in files:
            name, data = os.path.relpath(file, folder), open(file, "rb").read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append("%s,sha256=%s,%d" % (name, digest, len(data)))
            add(name, data, os.stat(file).st_mode & 0o777)
        name = os.path.relpath(os.path.join(info, "RECORD"), folder)
        add(name, "\n".join(record + [name + ",,"]) + "\n", 0o644)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The hook of PEP 517, for pip."""
    return os.path.basename(build(parse(["--out", wheel_directory])))


def build(options):
    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "ctrt-%s-%s.whl" % (version(), tag))
    with tempfile.TemporaryDirectory() as folder:
        left_out = collect(options, folder)
        pack(folder, metadata(folder, tag), path)
    print("%s, %.1f MiB%s" % (path, os.path.getsize(path) / 2**20,
                              ", without " + ", ".join(left_out) if left_out else ""))
    return path


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "_build"))
    parser.add_argument("--out")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--strip", default="strip")
    parser.add_argument("--readelf", default="readelf")
    options = parser.parse_args(arguments)
    options.out = options.out or os.path.join(options.build, "python")
    return options


if __name__ == "__main__":
    build(parse(sys.argv[1:]))
