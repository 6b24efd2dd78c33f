"""Writes functions that compute with vectors of float32, as instructions for LLVM."""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

Number = Any
"""A value of the function that is written (`ir.Value`), or an integer that is known already."""

FLOAT = ir.FloatType()
INTEGER = ir.IntType(64)
POINTER = FLOAT.as_pointer()


class Emitter:
    """Writes the body of a function without a result.

    Args:
        module: What the function is added to.
        name: Its name.
        num_pointers: How many pointers to float32 it takes; one integer follows them.
        lanes: Numbers in a vector.

    Attributes:
        pointers: The pointers.
        count: The integer.
        lanes: As given.
        zero: A vector of zeros.
    """

    def __init__(self, module: ir.Module, name: str, num_pointers: int, lanes: int) -> None:
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * num_pointers + [INTEGER]), name)
        self.pointers, self.count = function.args[:-1], function.args[-1]
        self.lanes = lanes
        self._vector = ir.VectorType(FLOAT, lanes)
        self.zero = ir.Constant(self._vector, [0.0] * lanes)
        self._fma = ir.Function(module, ir.FunctionType(self._vector, [self._vector] * 3), f"llvm.fma.v{lanes}f32")
        self._builder = ir.IRBuilder(function.append_basic_block())

    def loop(
        self,
        stop: Number,
        body: Callable[..., Sequence[Number] | None],
        *,
        start: int = 0,
        step: int = 1,
        carried: Sequence[Number] = (),
    ) -> Sequence[Number]:
        """Repeat some instructions, at least once.

        Args:
            stop: The index is less than this, but for the first turn.
            body: Writes the instructions of one turn. Takes the index and what the turn before gave; gives as many
                values, or None where nothing is carried.
            start: The first index.
            step: From one index to the next.
            carried: What the first turn takes.

        Returns:
            What the last turn gives.
        """
        builder, before = self._builder, self._builder.block
        inside = builder.append_basic_block()
        builder.branch(inside)
        builder.position_at_end(inside)
        index = builder.phi(INTEGER)
        index.add_incoming(INTEGER(start), before)
        state = [builder.phi(value.type) for value in carried]
        after = body(index, *state) or ()
        following = builder.add(index, INTEGER(step))
        index.add_incoming(following, builder.block)
        for phi, first, next_value in zip(state, carried, after, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(next_value, builder.block)
        behind = builder.append_basic_block()
        builder.cbranch(builder.icmp_signed("<", following, _value(stop)), inside, behind)
        builder.position_at_end(behind)
        return after

    def sum(self, *terms: Number) -> Number:
        """Add integers."""
        total = _value(terms[0])
        for term in terms[1:]:
            total = self._builder.add(total, _value(term))
        return total

    def times(self, value: Number, factor: int) -> Number:
        """Multiply an integer."""
        return self._builder.mul(_value(value), INTEGER(factor))

    def at_most(self, value: Number, limit: int) -> Number:
        """Give the smaller of two integers."""
        is_less = self._builder.icmp_signed("<", value, INTEGER(limit))
        return self._builder.select(is_less, value, INTEGER(limit))

    def minus(self, value: Number, other: Number) -> Number:
        """Subtract integers."""
        return self._builder.sub(_value(value), _value(other))

    def at(self, pointer: Number, *offset: Number) -> Number:
        """Give the pointer to a number some places on."""
        return self._builder.gep(pointer, [self.sum(*offset)])

    def load(self, pointer: Number, *offset: Number) -> Number:
        """Read a vector from some places behind a pointer."""
        vector = self._builder.load(self._vectors(pointer, offset))
        vector.align = 4
        return vector

    def store(self, vector: Number, pointer: Number, *offset: Number) -> None:
        """Write a vector some places behind a pointer."""
        self._builder.store(vector, self._vectors(pointer, offset)).align = 4

    def spread(self, pointer: Number, *offset: Number) -> Number:
        """Read one number and give the vector that repeats it."""
        number = self._builder.load(self.at(pointer, *offset))
        nothing = ir.Constant(self._vector, ir.Undefined)
        alone = self._builder.insert_element(nothing, number, ir.IntType(32)(0))
        first = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self._builder.shuffle_vector(alone, nothing, first)

    def add(self, one: Number, other: Number) -> Number:
        """Add vectors."""
        return self._builder.fadd(one, other)

    def subtract(self, one: Number, other: Number) -> Number:
        """Subtract vectors."""
        return self._builder.fsub(one, other)

    def multiply_add(self, one: Number, other: Number, summand: Number) -> Number:
        """Give `one * other + summand`, rounded once."""
        return self._builder.call(self._fma, [one, other, summand])

    def relu(self, vector: Number) -> Number:
        """Set negative numbers to zero; what is no number stays."""
        return self._builder.select(self._builder.fcmp_ordered("<", vector, self.zero), self.zero, vector)

    def end(self) -> None:
        """End the function."""
        self._builder.ret_void()

    def _vectors(self, pointer: Number, offset: Sequence[Number]) -> Number:
        return self._builder.bitcast(self.at(pointer, *offset), self._vector.as_pointer())


def _value(number: Number) -> Number:
    return INTEGER(number) if isinstance(number, int) else number
