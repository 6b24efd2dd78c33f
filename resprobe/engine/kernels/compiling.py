"""Compiles instructions for LLVM to machine code of this processor."""

import ctypes
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import binding, ir

LANES = 8
_NEEDED_FEATURES = ("avx2", "fma")


@dataclass(frozen=True)
class Compiled:
    """A function in machine code.

    Attributes:
        call: Takes addresses and an integer; lets other threads of Python run meanwhile.
        engine: Owns the machine code.
    """

    call: Callable[..., None]
    engine: Any


@cache
def can_compile() -> bool:
    """Tell whether this is a processor for which vectors of eight float32 are right: x86-64 with AVX2 and FMA."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in _NEEDED_FEATURES)


def compiled(module: ir.Module, name: str, num_pointers: int) -> Compiled:
    """Compile a function.

    Args:
        module: Holds the function.
        name: Its name.
        num_pointers: How many pointers it takes; one integer follows them.

    Returns:
        The function, for as long as this is kept.
    """
    _prepare()
    parsed = binding.parse_assembly(str(module))
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
    # without LLVM's passes over the instructions, which gain nothing here and take two thirds of the time
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * num_pointers, ctypes.c_int64)
    return Compiled(signature(engine.get_function_address(name)), engine)


@cache
def _prepare() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
