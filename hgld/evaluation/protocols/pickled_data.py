"""Plain data from a pickle, read without running any of it.

A pickle is a program for a stack machine, two of whose instructions call whatever they name. This reader interprets
the others alone, and of calls only those that make numpy arrays, numbers and byte strings; anything else is refused.
Nothing is imported, looked up or called by a name from the file.
"""

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hgld.errors import InputError, excerpt

_MOST_BYTES = 64 << 20
_CODECS = {"latin1", "latin-1", "iso-8859-1"}
_NUMERIC = (
    frozenset("bBhHiIlLqQefd?") | {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f2", "f4", "f8", "b1"}
)
_MOST_DIMENSIONS = 32
_KEYS = (str, bytes, int, float, bool, type(None))
_MARK = object()


def read_pickled_data(path: str | Path) -> Any:
    """Read builtin containers, numbers, text and numpy arrays of numbers from a pickle file; none of its code runs.

    Args:
        path: a pickle of any protocol (0 to 5), of Python 2 or 3, of at most 64 MiB.

    Returns:
        the object; text of Python 2 (``str``) is read as latin-1.

    Raises:
        InputError: the file is no pickle, is cut short or too large, or holds anything but plain data.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        data = file.read_bytes() if size <= _MOST_BYTES else b""
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}).") from error
    if size > _MOST_BYTES:
        raise InputError(f"{file}: {size} bytes; expected a pickle of at most {_MOST_BYTES}.")
    machine = _Machine()
    try:
        for opcode, argument, position in pickletools.genops(data):
            try:
                machine.run(opcode.name, argument)
            except (_RefusedError, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
                raise InputError(
                    f"{file}: byte {position}, instruction {opcode.name}: {_reason(error)}. Only plain data is read "
                    "from pickles, never code; take the file from where the benchmark publishes it."
                ) from error
    except (ValueError, UnicodeDecodeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: not a whole pickle file ({excerpt(error)}).") from error
    return machine.result


class _RefusedError(Exception):
    """Refusal of something other than plain data."""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _RefusedError) else f"malformed ({type(error).__name__}: {excerpt(error)})"


@dataclass(frozen=True)
class _Name:
    """Name of a module's member in the file: a word, nothing is looked up."""

    module: str
    member: str


@dataclass
class _Dtype:
    """A dtype in the making: numpy pickles its byte order separately."""

    code: str
    order: str = "="

    def resolve(self) -> np.dtype:
        return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]


class _Machine:
    """The stack machine of the pickle format, without its means to call and to import."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def run(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _INSTRUCTIONS:
            _INSTRUCTIONS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise _RefusedError("this instruction is not one of plain data")

    def pop(self) -> Any:
        top = self.stack.pop()
        if top is _MARK:
            raise _RefusedError("the stack holds a mark where a value should be")
        return top

    def since_mark(self) -> list[Any]:
        start = max(i for i, item in enumerate(self.stack) if item is _MARK)
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise _RefusedError(f"found {type(self.stack[-1]).__name__} where a {kind.__name__} is filled")
        return self.stack[-1]

    def push_dict(self, items: list[Any]) -> None:
        self.stack.append({})
        self.set_items(items)

    def set_items(self, items: list[Any]) -> None:
        if not all(isinstance(key, _KEYS) for key in items[::2]):  # hashing deep tuples would exhaust C's stack
            raise _RefusedError("a dict whose keys are neither text nor numbers")
        self.top(dict).update(zip(items[::2], items[1::2], strict=True))

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def append(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def tuple_of(self, size: int) -> None:
        items = [self.pop() for _ in range(size)]
        self.stack.append(tuple(reversed(items)))

    def name(self, module: object, member: object) -> None:
        if not isinstance(module, str) or not isinstance(member, str):
            raise _RefusedError("a name that is not text")
        self.stack.append(_Name(module, member))

    def stack_name(self) -> None:
        member, module = self.pop(), self.pop()
        self.name(module, member)

    def memoize(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def stop(self) -> None:
        self.result = self.pop()
        if self.stack or isinstance(self.result, _Name | _Dtype):
            raise _RefusedError("the file does not end with one plain value")

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise _RefusedError("a call of something that is not a named function")
        maker = _MAKERS.get((_PLACES.get(function.module, function.module), function.member))
        if maker is None:
            raise _RefusedError(f"it calls {function.module}.{function.member}")
        self.stack.append(maker(*arguments))

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if not isinstance(state, tuple):
            raise _RefusedError(f"a state of {type(state).__name__}")
        if isinstance(target, _Dtype):
            _, order, *structure = state
            if any(part is not None for part in structure[:3]) or order not in ("<", ">", "=", "|"):
                raise _RefusedError("a structured dtype")
            target.order = order
        elif isinstance(target, np.ndarray):
            _, shape, dtype, fortran, data = state
            filled = _array(data, dtype, shape)  # checked; the bytes stay as they are, in whichever order
            state = (1, filled.shape, filled.dtype, bool(fortran), filled.tobytes())
            target.__setstate__(state)  # type: ignore[arg-type]  # in place: the memo and containers hold the array
        else:
            raise _RefusedError(f"a state for {type(target).__name__}")


def _dtype(code: object, *_: object) -> _Dtype:
    if not isinstance(code, str) or code.lstrip("<>=|") not in _NUMERIC:
        raise _RefusedError(
            f"an array of dtype {code if isinstance(code, str) else type(code).__name__}; expected numbers"
        )
    return _Dtype(code.lstrip("<>=|"))


def _bytes(data: object) -> bytes:
    if isinstance(data, str):  # a str of Python 2
        return data.encode("latin-1")
    if not isinstance(data, bytes | bytearray):
        raise _RefusedError(f"array data of type {type(data).__name__}")
    return bytes(data)


def _array(data: object, dtype: object, shape: object, order: object = "C") -> np.ndarray:
    raw = _bytes(data)
    given = shape if isinstance(shape, tuple) else (shape,)
    sizes = tuple(n for n in given if type(n) is int and 0 <= n <= _MOST_BYTES)
    if not isinstance(dtype, _Dtype) or len(sizes) != len(given) or order not in ("C", "F"):
        raise _RefusedError("an array of no proper shape or dtype")
    if len(sizes) > _MOST_DIMENSIONS:
        raise _RefusedError(f"an array of {len(sizes)} dimensions")
    kind = dtype.resolve()
    if math.prod(sizes) * kind.itemsize != len(raw):
        raise _RefusedError(f"an array of shape {sizes} with {len(raw)} bytes")
    return np.frombuffer(raw, kind).reshape(sizes, order=order).copy(order)  # type: ignore[call-overload]


def _empty_array(kind: object, *_: object) -> np.ndarray:
    if kind != _Name("numpy", "ndarray"):
        raise _RefusedError("an array of a class of its own")
    return np.empty(0, np.int8)


def _encode(text: object, codec: object = "latin1") -> bytes:
    if not isinstance(text, str) or not isinstance(codec, str) or codec not in _CODECS:
        raise _RefusedError("text in another encoding than latin-1")
    return text.encode("latin-1")


def _bytes_of(data: object = b"", codec: object = "latin1") -> bytes:
    return _encode(data, codec) if isinstance(data, str) else _bytes(data)


_PLACES = {
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
    "__builtin__": "builtins",
}
_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.multiarray", "scalar"): lambda dtype, data: _array(data, dtype, ()).item(),
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("_codecs", "encode"): _encode,
    ("builtins", "bytes"): _bytes_of,
    ("builtins", "bytearray"): _bytes_of,
}
_LITERALS = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    "POP": lambda m, _: m.stack.pop(),
    "POP_MARK": lambda m, _: m.since_mark(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "APPEND": lambda m, _: m.append([m.pop()]),
    "APPENDS": lambda m, _: m.append(m.since_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "DICT": lambda m, _: m.push_dict(m.since_mark()),
    "SETITEM": lambda m, _: m.set_item(),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "PUT": lambda m, key: m.memoize(key),
    "BINPUT": lambda m, key: m.memoize(key),
    "LONG_BINPUT": lambda m, key: m.memoize(key),
    "MEMOIZE": lambda m, _: m.memoize(len(m.memo)),
    "GET": lambda m, key: m.stack.append(m.memo[key]),
    "BINGET": lambda m, key: m.stack.append(m.memo[key]),
    "LONG_BINGET": lambda m, key: m.stack.append(m.memo[key]),
    "GLOBAL": lambda m, both: m.name(*both.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.stack_name(),
    "REDUCE": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.build(),
    "STOP": lambda m, _: m.stop(),
}
