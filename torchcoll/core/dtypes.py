"""Element types: torch's names, sizes, and the integers that each holds exactly."""

from __future__ import annotations

from dataclasses import dataclass

from torchcoll.core.errors import unknown


@dataclass(frozen=True)
class Dtype:
    """One element type.

    ``exact`` is the largest n so that 0, 1, ... n are all held exactly; verification patterns stay
    below it. Sources: IEEE 754 for the floats (2**(mantissa bits + 1)); OCP 8-bit floating point
    specification 1.0 for float8 (3 mantissa bits for e4m3: 16; 2 for e5m2: 8).
    """

    name: str
    itemsize: int  # bytes
    kind: str  # 'float', 'int' or 'uint'
    exact: int
    aliases: tuple[str, ...] = ()


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("float32", 4, "float", 1 << 24, ("float", "fp32")),
        Dtype("float64", 8, "float", 1 << 53, ("double", "fp64")),
        Dtype("float16", 2, "float", 1 << 11, ("half", "fp16")),
        Dtype("bfloat16", 2, "float", 1 << 8, ("bf16",)),
        Dtype("int8", 1, "int", 127, ("char",)),
        Dtype("uint8", 1, "uint", 255, ()),
        Dtype("int16", 2, "int", (1 << 15) - 1, ("short",)),
        Dtype("int32", 4, "int", (1 << 31) - 1, ("int",)),
        Dtype("int64", 8, "int", (1 << 63) - 1, ("long",)),
        Dtype("float8_e4m3fn", 1, "float", 16, ("f8e4m3", "fp8_e4m3")),
        Dtype("float8_e5m2", 1, "float", 8, ("f8e5m2", "fp8_e5m2")),
    )
}

# What `--dtype all` means: the types that every backend has; the rest is asked for by name.
COMMON_DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int32",
    "int64",
)

_BY_ALIAS = {alias: d for d in DTYPES.values() for alias in (d.name, *d.aliases)}


def find_dtype(name: str) -> Dtype:
    """The type of that name; torch's, nccl-tests' and short spellings. Raises UsageError."""
    found = _BY_ALIAS.get(str(name).removeprefix("torch.").lower())
    if found is None:
        raise unknown("dtype", name, DTYPES)
    return found
