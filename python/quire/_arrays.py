# SPDX-License-Identifier: Apache-2.0
"""New arrays of the library that an argument came from. Called by the compiled part."""

import sys

from quire._error import Error

_NAMES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i8": "int8",
}


def _library(source):
    return type(source).__module__.partition(".")[0].removesuffix("lib")


def numpy_dtype(name):
    """The NumPy dtype of a format of quire."""
    import numpy

    name = _NAMES.get(name, name)
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        try:
            import ml_dtypes
        except ImportError as error:
            raise Error(f"NumPy has no {name} without the package ml_dtypes") from error
        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


def empty(source, shape, dtype):
    """An array that can be written, on the device of `source`."""
    library = _library(source)
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, _NAMES[dtype]), device=source.device)
    if library == "cupy":
        import cupy

        return cupy.empty(shape, dtype=numpy_dtype(dtype))
    device_type = source.__dlpack_device__()[0] if hasattr(source, "__dlpack_device__") else 1
    if device_type != 1:
        raise Error(f"out: needed, because arrays of {library} on a device cannot be made here")
    import numpy

    return numpy.empty(shape, dtype=numpy_dtype(dtype))


def number_like(name, source, number):
    """[1] float32 with that number, of the library and on the device of `source`."""
    library = _library(source)
    if library == "torch":
        import torch

        return torch.full((1,), number, dtype=torch.float32, device=source.device)
    if library == "cupy":
        import cupy

        return cupy.full(1, number, dtype="float32")
    raise Error(f"{name}: needs an array on the device of the cache")


def in_library_of(source, made):
    """What the caller is given for an array that `empty` has made."""
    if _library(source) == "jax":
        import jax.numpy

        return jax.numpy.asarray(made)
    return made


def current_stream(source, index):
    """The number of the stream on which the library of `source` works on the device `index`; None:
    any library."""
    library = _library(source) if source is not None else ""
    if library == "cupy":
        import cupy

        return cupy.cuda.get_current_stream().ptr
    if "torch" in sys.modules and library in ("", "torch"):
        import torch

        return torch.cuda.current_stream(index).cuda_stream if torch.cuda.is_available() else 0
    return 0


def device_name(array):
    """Where an array lies, as KvCache and PreparedBatch take it: "cpu", "cuda" or "cuda:1"."""
    if _is_torch(array):
        return str(array.device)
    return "cuda" if _library(array) == "cupy" else "cpu"


_QUIRE_NAMES = {name: short for short, name in _NAMES.items()}


def dtype_name(array):
    """The name that quire has for the format of an array."""
    name = str(array.dtype).removeprefix("torch.")
    if name not in _QUIRE_NAMES:
        raise Error(f"quire has no number format '{name}'")
    return _QUIRE_NAMES[name]


def item_bytes(array):
    """Of one element."""
    return array.dtype.itemsize


def _is_torch(array):
    return _library(array) == "torch"


def integers(name, source, like):
    """`source` if it is an array; a list of whole numbers as int32 (int64 if it must) where `like`
    lies."""
    if hasattr(source, "shape"):
        return source
    import numpy

    try:
        numbers = numpy.asarray(source)
    except (TypeError, ValueError, OverflowError) as error:
        raise Error(f"{name}: needs an array or a list of whole numbers: {error}") from error
    if numbers.ndim == 0 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise Error(f"{name}: needs an array or a list of whole numbers, has {source!r}")
    narrow = numbers.astype("int32")
    numbers = narrow if (narrow == numbers).all() else numbers.astype("int64")
    if _is_torch(like):
        import torch

        return torch.from_numpy(numbers).to(like.device)
    return numbers


def on_host(array):
    """As NumPy sees it; a copy if it lies on a device."""
    return array.cpu().numpy() if _is_torch(array) else array


def require_arrays(**arrays):
    """Raises for what has no shape; None is nothing."""
    for name, array in arrays.items():
        if array is not None and not hasattr(array, "shape"):
            raise Error(f"{name}: needs an array, has {type(array).__name__}")


def require_shape(name, array, *shape):
    """Raises unless an array has these sizes; None is any."""
    found = list(array.shape)
    if len(found) != len(shape):
        raise Error(f"{name}: needs rank {len(shape)}, has {len(found)}")
    if any(want is not None and want != has for want, has in zip(shape, found)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise Error(f"{name}: needs shape [{wanted}], has {found}")


def require_integers(name, array, *shape):
    """Raises unless an array holds whole numbers in that shape."""
    require_shape(name, array, *shape)
    if "int" not in str(array.dtype):
        raise Error(f"{name}: needs whole numbers, has {array.dtype}")


def arange(like, stop):
    """[0, stop) as int32, of the library and on the device of `like`."""
    if _is_torch(like):
        import torch

        return torch.arange(stop, dtype=torch.int32, device=like.device)
    import numpy

    return numpy.arange(stop, dtype=numpy.int32)


def full(like, size, value):
    """[size] int32."""
    return 0 * arange(like, size) + value


def where(condition, yes, no):
    """Elements of `yes` where the condition holds, else of `no`."""
    if _is_torch(condition):
        import torch

        return torch.where(condition, yes, no)
    import numpy

    result = numpy.where(condition, yes, no)
    return result.astype(no.dtype) if hasattr(no, "dtype") else result


def as_int64(array):
    """As whole numbers that hold any slot."""
    return array.long() if _is_torch(array) else array.astype("int64")


def take_along_rows(table, columns):
    """table[i, columns[i, j]]"""
    if _is_torch(table):
        return table.gather(1, columns.long())
    import numpy

    return numpy.take_along_axis(table, columns, axis=1)


def broadcast_heads(bias, num_heads):
    """[n, 1, q, k] -> [n, num_heads, q, k] without a copy."""
    shape = (bias.shape[0], num_heads, *bias.shape[2:])
    if _is_torch(bias):
        return bias.expand(shape)
    import numpy

    return numpy.broadcast_to(bias, shape)


def as_numpy(array):
    """`array` without a copy."""
    import numpy

    from quire import _quire

    if isinstance(array, numpy.ndarray):
        return array
    name, as_bits = _quire.as_bits(array)
    return numpy.asarray(as_bits).view(numpy_dtype(name))
