#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lets PyTorch's wheel for CUDA be imported without the libraries of CUDA: stub_libraries.py VENV

The wheel links some gigabytes of libraries that computing on a CPU never calls. For each of those
that is not installed this makes a small one of the same name and symbol versions beside the
installed ones; its functions return 1, an error in all of them.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# Whose symbols have no versions.
PREFIXES = {"libnccl.so": "nccl", "libcusparseLt.so": "cusparseLt", "libcufile.so": "cuFile"}


def output(*command):
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", library))


def versions(library):
    """Which versions of which other library it needs: {file: [version]}"""
    result, file = collections.defaultdict(list), None
    for line in output("readelf", "-V", library).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif (match := re.search(r"Name: (\S+)", line)) and file:
            result[file].append(match[1])
    return result


def undefined(library):
    """Names without versions, and {version: names}."""
    plain, versioned = set(), collections.defaultdict(set)
    for line in output("nm", "-D", "--undefined-only", library).splitlines():
        name, _, version = line.split()[-1].partition("@")
        version = version.lstrip("@")
        (versioned[version] if version else plain).add(name)
    return plain, versioned


def build(target, versions_of, names):
    """names: {version or "": names}"""
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "stub.map")
        every = sorted(set().union(*names.values(), {f"quire_stub_{target.name.split('.')[0]}"}))
        source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in every))
        nodes = []
        for version in versions_of:
            own = "".join(f" {name};" for name in sorted(names.get(version, ())))
            nodes.append(f"{version} {{{' global:' + own if own else ''} }};\n")
        script.write_text("".join(nodes))
        options = [f"-Wl,--version-script={script}"] if nodes else []
        command = ["cc", "-shared", "-fPIC", "-O1", "-fno-builtin", f"-Wl,-soname,{target.name}"]
        subprocess.run([*command, *options, "-o", target, source], check=True)


def main(venv):
    (packages,) = pathlib.Path(venv).glob("lib/python3*/site-packages")
    libraries = sorted((packages / "torch/lib").glob("*.so*"))
    present = {path.name for path in packages.glob("nvidia/*/lib/*.so*")}
    present |= {path.name for path in libraries}
    wanted, plain = collections.defaultdict(set), set()
    names = collections.defaultdict(set)
    for library in libraries:
        for name in needed(library):
            # The driver is of the machine, not of a wheel.
            is_ours = re.match(r"lib(cu|nv|nccl)", name) and not name.startswith("libcuda.so")
            if is_ours and name not in present:
                wanted[name] |= set(versions(library)[name])
        own_plain, own_versioned = undefined(library)
        plain |= own_plain
        for version, own in own_versioned.items():
            names[version] |= own
    (folder,) = {path.parent for path in packages.glob("nvidia/*/lib/libcudart.so*")}
    for name, versions_of in sorted(wanted.items()):
        own = {version: names[version] for version in versions_of}
        prefix = PREFIXES.get(re.sub(r"\.so.*", ".so", name))
        if prefix:
            own[""] = {symbol for symbol in plain if symbol.startswith(prefix)}
        build(folder / name, sorted(versions_of), own)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
