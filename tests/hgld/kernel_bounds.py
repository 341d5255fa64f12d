"""Bounds of the integers that a Triton kernel computes, by interval arithmetic over its intermediate code (TTIR)."""

import re
from collections.abc import Mapping

Interval = tuple[int, int]

_RESULT = re.compile(r"^\s*(%[\w#]+)(?::\d+)? = ([\w.]+) (.*)$")
_LOOP = re.compile(r"scf\.for (%\w+) = (%\w+) to (%\w+) step %\w+ .*: i(\d+) \{")
_INTEGER = re.compile(r"^(?:tensor<(?:\d+x)*)?i(\d+)>?$")
_SAME = ("tt.splat", "tt.expand_dims", "tt.broadcast", "arith.extsi", "arith.extui", "tt.reshape")
_CONSTANT = re.compile(r"^(?:dense<)?(-?\d+|true|false)>? : ")


def largest_offsets(code: str, arguments: Mapping[str, Interval], loaded: Mapping[str, Interval]) -> dict[str, int]:
    """Return the largest offset, in elements, from every pointer that a kernel is given.

    Args:
        code: of the kernel, as Triton's compiler keeps it (``asm["ttir"]``).
        arguments: bounds of the integers that it is given, and of ``program_id``.
        loaded: bounds of the integers that it reads, by the name of the pointer.

    Raises:
        OverflowError: an integer can leave its type.
        ValueError: an operation on integers that is not known here.
    """
    known = {f"%{name}": bounds for name, bounds in arguments.items()}
    root: dict[str, str] = {}
    reached: dict[str, int] = {}
    for raw in code.splitlines():
        line = re.sub(r" loc\(.*\)$", "", raw)
        if loop := _LOOP.search(line):
            name, low, high, bits = loop.groups()
            known[name] = _held((known[low][0], known[high][1] - 1), int(bits), name)
        found = _RESULT.match(line)
        if loop or not found:
            continue
        name, operation, rest = found.groups()
        operands: list[str] = re.findall(r"%[\w#]+", rest)
        kind = re.split(r" to | -> | : |, ", rest)[-1]
        if operation == "tt.addptr":
            base, (low, high) = operands[0], known[operands[1]]
            root[name] = root.get(base, base)
            known[name] = (known.get(base, (0, 0))[0] + low, known.get(base, (0, 0))[1] + high)
            reached[root[name]] = max(reached.get(root[name], 0), known[name][1])
        elif "!tt.ptr" in kind:
            base = operands[0]
            root[name], known[name] = root.get(base, base), known.get(base, (0, 0))
            if operation == "tt.load" and re.search(r"ptr<i\d+>", kind):
                known[name] = loaded[root[base].removeprefix("%")]
        elif (integer := _INTEGER.match(kind)) and not operation.startswith("arith.cmp"):
            known[name] = _held(_bounds(operation, rest, operands, known), int(integer.group(1)), name)
    return {name.removeprefix("%"): offset for name, offset in reached.items()}


def _bounds(operation: str, rest: str, operands: list[str], known: Mapping[str, Interval]) -> Interval:
    if operation == "arith.constant":
        stated = _CONSTANT.match(rest)
        if stated is None:
            raise ValueError(f"{operation} {rest}")
        return int(stated.group(1)), int(stated.group(1))
    if operation == "tt.get_program_id":
        return known["%program_id"]
    if operation == "tt.make_range":
        end, start = (int(number) for number in re.findall(r"(?:end|start) = (\d+)", rest))
        return start, end - 1
    if operation in _SAME:
        return known[operands[0]]
    pairs = [(a, b) for a in known[operands[0]] for b in known[operands[1]]]
    if operation == "arith.addi":
        ends = [a + b for a, b in pairs]
    elif operation == "arith.muli":
        ends = [a * b for a, b in pairs]
    elif operation == "arith.divsi":
        ends = [a // b for a, b in pairs]
    elif operation == "arith.remsi":
        ends = [0, min(known[operands[0]][1], known[operands[1]][1] - 1)]
    else:
        raise ValueError(f"{operation} {rest}")
    return min(ends), max(ends)


def _held(bounds: Interval, bits: int, name: str) -> Interval:
    if not -(1 << bits - 1) <= bounds[0] <= bounds[1] < 1 << bits - 1:
        raise OverflowError(f"{name} of {bits} bits reaches {bounds[1]}")
    return bounds
