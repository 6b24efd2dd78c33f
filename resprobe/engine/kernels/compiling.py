"""Compiles instructions for LLVM to machine code of this processor."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import binding, ir

from resprobe.engine.kernels.availability import CompilationError
from resprobe.errors import first_line


@dataclass(frozen=True)
class Compiled:
    """A function in machine code.

    Attributes:
        call: Takes addresses and an integer; lets other threads of Python run meanwhile.
        engine: Owns the machine code.
    """

    call: Callable[..., None]
    engine: Any


def compiled(module: ir.Module, name: str, num_pointers: int) -> Compiled:
    """Compile a function.

    Args:
        module: Holds the function.
        name: Its name.
        num_pointers: How many pointers it takes; one integer follows them.

    Returns:
        The function, for as long as this is kept.

    Raises:
        CompilationError: If LLVM refuses, or the system allows no new machine code.
    """
    try:
        engine = _engine(str(module))
        address = engine.get_function_address(name)
    except (RuntimeError, OSError, MemoryError, ValueError) as error:
        raise CompilationError(f"{type(error).__name__}: {first_line(error)}") from error
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * num_pointers, ctypes.c_int64)
    return Compiled(signature(address), engine)


def _engine(assembly: str) -> Any:
    _prepare()
    parsed = binding.parse_assembly(assembly)
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
    # without LLVM's passes over the instructions, which gain nothing here and take two thirds of the time
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine


@cache
def _prepare() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
