"""Unaligned loads, stores and copies inside kernels.

Byte-wise loops would be several times slower, because the compiler cannot join single-byte accesses of an array that
may alias another one. Positions are byte indexes into C-contiguous uint8 arrays. The kernels do no checks, except under
NUMBA_BOUNDSCHECK=1 (`jit.CHECKED`): then bytes outside of the array raise IndexError. A prefetch reads no value.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from lastkey.logformat.jit import CHECKED

cgutils: Any = untyped_cgutils
_BYTES = ir.IntType(8).as_pointer()


def _address(context: Any, builder: Any, array_type: Any, array: Any, position: Any, count: Any) -> Any:
    """Generate the address of `count` bytes from `position` on, with a check of bounds if CHECKED."""
    proxy = cgutils.create_struct_proxy(array_type)(context, builder, value=array)
    if CHECKED:
        end = builder.mul(proxy.nitems, proxy.itemsize)
        outside = builder.or_(
            builder.or_(builder.icmp_signed("<", position, ir.Constant(position.type, 0)),
                        builder.icmp_signed("<", count, ir.Constant(count.type, 0))),
            builder.icmp_signed(">", count, builder.sub(end, position)),
        )  # fmt: skip
        with cgutils.if_unlikely(builder, outside):
            context.call_conv.return_user_exc(builder, IndexError, ("bytes outside of the array",))
    return builder.gep(builder.bitcast(proxy.data, _BYTES), [position])


def _loader(width: int, big_endian: bool, result: Any) -> Any:
    n_bytes = ir.Constant(ir.IntType(64), width // 8)

    def load(typing_context: Any, array: Any, position: Any) -> Any:
        signature = result(array, types.int64)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _address(context, builder, sig.args[0], args[0], args[1], n_bytes)
            word = builder.load(builder.bitcast(pointer, ir.IntType(width).as_pointer()))
            word.align = 1
            return builder.bswap(word) if big_endian else word

        return signature, generate

    return intrinsic(load)


def _storer(width: int, big_endian: bool, value_type: Any) -> Any:
    n_bytes = ir.Constant(ir.IntType(64), width // 8)

    def store(typing_context: Any, array: Any, position: Any, value: Any) -> Any:
        signature = types.void(array, types.int64, value_type)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _address(context, builder, sig.args[0], args[0], args[1], n_bytes)
            word = builder.bswap(args[2]) if big_endian else args[2]
            instruction = builder.store(word, builder.bitcast(pointer, ir.IntType(width).as_pointer()))
            instruction.align = 1
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(store)


load_u64_le = _loader(64, False, types.uint64)  # (array, position) -> uint64, little-endian as SipHash reads
load_u32_le = _loader(32, False, types.uint32)
load_i64 = _loader(64, True, types.int64)  # (array, position) -> int64, big-endian as Kafka writes
load_i32 = _loader(32, True, types.int32)
load_i16 = _loader(16, True, types.int16)
store_u32_le = _storer(32, False, types.uint32)
store_i64 = _storer(64, True, types.int64)  # (array, position, value), big-endian
store_i32 = _storer(32, True, types.int32)
store_i16 = _storer(16, True, types.int16)


def _copy(typing_context: Any, target: Any, target_position: Any, source: Any, source_position: Any, count: Any) -> Any:
    """Copy by memcpy: (target, target_position, source, source_position, count); the ranges must not overlap."""
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = _address(context, builder, sig.args[0], args[0], args[1], args[4])
        origin = _address(context, builder, sig.args[2], args[2], args[3], args[4])
        cgutils.raw_memcpy(builder, to, origin, args[4], 1)
        return context.get_dummy_value()

    return signature, generate


copy_bytes: Any = intrinsic(_copy)


def _prefetch(typing_context: Any, array: Any, i: Any) -> Any:
    """Bring array[i] into the cache, for a read or write soon: (array, i). Never fails."""
    signature = types.void(array, types.int64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = cgutils.create_struct_proxy(sig.args[0])(context, builder, value=args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), _BYTES)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, word(1), word(3), word(1)])  # to write, keep close, data
        return context.get_dummy_value()

    return signature, generate


prefetch: Any = intrinsic(_prefetch)
