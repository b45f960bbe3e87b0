# SPDX-License-Identifier: Apache-2.0
"""The structs of the C headers as ctypes classes, read from their text."""

import ctypes
import pathlib
import re

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
HEADERS = sorted((INCLUDE / "quire/c").glob("*.h"))
NUMBERS = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint8_t": ctypes.c_uint8,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
ARRAY_SIZES = {"QUIRE_MAX_RANK": 5}
STRUCT = re.compile(r"typedef struct (quire_\w+) \{(.*?)\} \1;", re.DOTALL)
FUNCTION_POINTER = re.compile(r"\(\*(\w+)\)\(.*\)$", re.DOTALL)
FIELD = re.compile(r"^(?:const )?(\w+)(\*?) (\w+)(?:\[(\w+)\])?$")


def field(declaration):
    """(name, ctypes type) of one declaration without its semicolon."""
    pointer = FUNCTION_POINTER.search(declaration)
    if pointer:
        return pointer[1], ctypes.c_void_p
    base, star, name, size = FIELD.match(declaration).groups()
    if star:
        return name, ctypes.c_char_p if base == "char" else ctypes.c_void_p
    if size:
        return name, NUMBERS[base] * int(ARRAY_SIZES.get(size, size))
    return name, NUMBERS[base]


class Sized(ctypes.Structure):
    """Filled like the structs of C: the size and version first, everything else 0 or given."""

    def __init__(self, **values):
        super().__init__(**values)
        self.struct_bytes = ctypes.sizeof(self)
        self.struct_version = 1


def read_structs():
    structs = {}
    for header in HEADERS:
        text = re.sub(r"//.*", "", header.read_text())
        for name, body in STRUCT.findall(text):
            fields = [" ".join(part.split()) for part in body.split(";")]
            structs[name] = type(
                name, (Sized,), {"_fields_": [field(part) for part in fields if part]}
            )
    return structs
