"""Matrix products, of dense matrices or of the rows of experts, plain or with SwiGLU or its backward in their epilogue, from quack-kernels (Apache-2.0; GemmSm90: tiles by TMA and
wgmma, one tile after the other on each multiprocessor; Han Guo and Tri Dao). What the epilogues compute is ours."""

from functools import partial
from typing import Callable, NamedTuple, Optional

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass._mlir.dialects import math as mlir_math
from cutlass.cutlass_dsl import dsl_user_op
from quack.activation import sigmoid
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.math import pack, unpack
from quack.epilogue.ops import ColVecLoad, ColVecReduce, TileStore
from quack.epilogue.visit import _EpiModMixinBase
from quack.gemm_sm90 import GemmSm90
from quack.rounding import RoundingMode
from quack.tile_scheduler import TileSchedulerOptions
from quack.varlen_utils import VarlenArguments

from export import export, pointer


class Tile(NamedTuple):
    rows: int
    columns: int
    # Two tiles of a multiprocessor take turns, one in its product and the other in its epilogue; else two halves of a tile go together.
    pingpong: bool
    # Multiprocessors ask for their next tile. Otherwise each has its share from the start: where kernels of communication hold some of
    # them, the shares of these begin when others are through.
    dynamic: bool
    # Two multiprocessors have tiles one beside the other and load the rows of both together; else one below the other, and the columns.
    shares_rows: bool = False

    def __str__(self):
        options = {"_pingpong": self.pingpong, "_dynamic": self.dynamic, "_shares_rows": self.shares_rows}
        return f"{self.rows}x{self.columns}" + "".join(name for name, is_on in options.items() if is_on)


CLUSTER = 2  # multiprocessors that load together


def tiles(columns_of_pingpong, dynamic):
    pingpong = [Tile(128, columns, True, dynamic) for columns in columns_of_pingpong]
    return pingpong + [Tile(128, 256, False, dynamic), Tile(256, 128, False, dynamic)]


# Large tiles load the least per product, which saves power where that is the limit; they pay for wide products only.
WIDE = Tile(256, 192, False, True, shares_rows=True)
LARGE = [WIDE, Tile(256, 192, False, True), Tile(256, 128, False, True, shares_rows=True)]

GROUPED = [*(Tile(128, columns, True, True, shares_rows=True) for columns in (192, 128)),
           Tile(128, 256, False, True, shares_rows=True)]

# Those to take where times cannot be told apart come first.
TILES = {
    "linear_swiglu": [*tiles((192, 128), True), WIDE, *tiles((192, 128), False)],
    "linear_dgrad_swiglu_backward": tiles((128, 160), True) + tiles((128, 160), False),
    "product_nt": tiles((192, 128), True) + LARGE,
    "product_nn": tiles((192, 128), True) + LARGE,
    "product_tn_added": [*tiles((192, 128), True), Tile(128, 192, True, True, shares_rows=True)],
    # Groups have few rows, so tiles are no higher than 128, and those of a cluster lie side by side.
    "grouped_nt": GROUPED,
    "grouped_nn": GROUPED,
    "grouped_tn": tiles((192, 128), True),
    "grouped_tn_added": tiles((192, 128), True),
    "grouped_linear_swiglu": GROUPED,
    # Sums over the columns of a tile are results, so there is one tile: which one is fastest must not decide about bits.
    "grouped_linear_dgrad_swiglu_backward": [Tile(128, 128, True, True, shares_rows=True)],
}


@dsl_user_op
def rounded(value, *, loc=None, ip=None):
    """Rounds to bf16, as the activation's own kernel would read it. One instruction: bf16 followed by zero bits is fp32. (The
    language's own conversion of a single value runs on the slow unit.)"""
    code = "{\n.reg .b32 both;\ncvt.rn.bf16x2.f32 both, $1, 0f00000000;\nmov.b32 $0, both;\n}"
    return Float32(llvm.inline_asm(Float32.mlir_type, [Float32(value).ir_value(loc=loc, ip=ip)], code, "=f,f", loc=loc, ip=ip))


def fma(a, b, c):
    return Float32(mlir_math.fma(a.ir_value(), b.ir_value(), c.ir_value()))


# The two below have the same operations in the same order as src/backends/cuda/kernels/swiglu.cuh, for the same bits.
def swiglu(acc):
    gate, up = (rounded(value) for value in unpack(acc))
    return {"D": pack(gate, up), "y": gate * sigmoid(gate) * up}


def swiglu_backward(acc, c):
    gate, up = unpack(c)
    d_y = rounded(acc)
    s = sigmoid(gate)
    silu = gate * s
    return {"D": pack(d_y * up * fma(silu, 1.0 - s, s), d_y * silu)}


# As routed_swiglu and its backward of src/backends/cuda/kernels/expert_rows.cu; w is the row's weight. "dw" is summed up over a tile's columns.
def routed_swiglu(acc, w):
    gate, up = (rounded(value) for value in unpack(acc))
    return {"D": pack(gate, up), "y": w * (gate * sigmoid(gate) * up)}


def routed_swiglu_backward(acc, c, w):
    gate, up = unpack(c)
    d_h = rounded(acc)
    d_y = w * d_h
    s = sigmoid(gate)
    silu = gate * s
    return {"D": pack(d_y * up * fma(silu, 1.0 - s, s), d_y * silu), "dw": (d_h, silu * up)}


def plain(acc):
    return {"D": acc}


def added(acc, c):
    return {"D": acc + c}


def kernel_class(name, epilogue, stores, operands, outputs, accumulators_per_call, packs_c_and_d, sums=()):
    """What quack's @gemm_epilogue makes of a function, without its PyTorch side. `sums`: of the stores, those that add up columns."""
    fields = [(op.name, op.arg_spec_type(const=False)) for op in stores]
    split_k = ("split_k_semaphore", "split_k_workspace")  # unused
    fields += [(field, Optional[cute.Tensor]) for field in split_k]
    arguments = NamedTuple("EpilogueArguments", fields)
    arguments.__new__.__defaults__ = (None,) * len(fields)
    arguments = mlir_namedtuple(arguments)
    arguments.add_to_output = False
    members = dict(
        _epi_ops=tuple(stores), _epi_mod_fn=staticmethod(epilogue), _epi_mod_operands=operands, _epi_mod_outputs=outputs,
        _epi_mod_sinks=sums, _epi_mod_group_n=accumulators_per_call, _epi_mod_packed_cd=packs_c_and_d, _epi_mod_prepass_fn=None,
        _epi_mod_prepass_operands=(), _epi_mod_prepass_outs=(), _epi_mod_rounding=RoundingMode.RN, _epi_mod_vectorize=None,
        _extra_param_fields=tuple((field, Optional[cute.Tensor], None) for field in split_k),
        EpilogueArguments=arguments, __module__=__name__, __qualname__=name)
    globals()[name] = type(name, (_EpiModMixinBase, GemmSm90), members)
    return globals()[name]


LinearSwiglu = kernel_class("LinearSwiglu", swiglu, [TileStore("y", gated=True)], (), ("y",), 2, False)
LinearDgradSwigluBackward = kernel_class("LinearDgradSwigluBackward", swiglu_backward, [], (("c", "c"),), (), 1, True)

GroupedLinearSwiglu = kernel_class("GroupedLinearSwiglu", routed_swiglu, [TileStore("y", gated=True), ColVecLoad("w")], (("w", "col"),), ("y",), 2,
                                   False)
GroupedLinearDgradSwigluBackward = kernel_class("GroupedLinearDgradSwigluBackward", routed_swiglu_backward,
                                                [ColVecLoad("w"), ColVecReduce("dw", scaled=True)], (("c", "c"), ("w", "col")), (), 1, True, ("dw",))

Product = kernel_class("Product", plain, [], (), (), 1, False)
AddedProduct = kernel_class("AddedProduct", added, [], (("c", "c"),), (), 1, False)


def rows(base, count, width):
    """[count, width], dense; width is a multiple of 8."""
    return cute.make_tensor(base, cute.make_layout((count, width), stride=(cute.assume(Int64(width), divby=8), 1)))


def columns(base, count, width):
    """[count, width] whose transpose is dense; count is a multiple of 8."""
    return cute.make_tensor(base, cute.make_layout((count, width), stride=(1, cute.assume(Int64(count), divby=8))))


def product(kernel_of, tile):
    cluster = (1, CLUSTER, 1) if tile.shares_rows else (CLUSTER, 1, 1)
    return kernel_of(Float32, BFloat16, (tile.rows, tile.columns), cluster, pingpong=tile.pingpong, is_persistent=True, use_pdl=False)


def schedule(tile, clusters, next_tile):
    """next_tile: 0, and 0 again at the end."""
    return TileSchedulerOptions(max_active_clusters=clusters, tile_count_semaphore=next_tile if tile.dynamic else None)


def linear_swiglu(tile):
    """x [m, k], w [n, k] -> gate_up [m, n], y [m, n / 2]"""
    kernel = product(LinearSwiglu, tile)

    @cute.jit
    def launch(x: cute.Pointer, w: cute.Pointer, gate_up: cute.Pointer, y: cute.Pointer, next_tile: cute.Pointer,
               m: Int32, n: Int32, k: Int32, groups: Int32, clusters: Int32, stream: cuda.CUstream):
        kernel(rows(x, m, k), rows(w, n, k), rows(gate_up, m, n), None, LinearSwiglu.EpilogueArguments(rows(y, m, n // 2)),
               schedule(tile, clusters, next_tile), None, stream)

    return launch


def linear_dgrad_swiglu_backward(tile):
    """dy [m, k], w [k, n], gate_up [m, 2 n] -> d_gate_up [m, 2 n]"""
    kernel = product(LinearDgradSwigluBackward, tile)
    kernel.cd_packed = "n"
    kernel.implicit_dtype = BFloat16

    @cute.jit
    def launch(dy: cute.Pointer, w: cute.Pointer, gate_up: cute.Pointer, d_gate_up: cute.Pointer, next_tile: cute.Pointer,
               m: Int32, n: Int32, k: Int32, groups: Int32, clusters: Int32, stream: cuda.CUstream):
        kernel(rows(dy, m, k), columns(w, n, k), rows(d_gate_up, m, 2 * n), rows(gate_up, m, 2 * n),
               LinearDgradSwigluBackward.EpilogueArguments(), schedule(tile, clusters, next_tile), None, stream)

    return launch


class PlainProduct(NamedTuple):
    """a [m, k], b [n, k] -> d [m, n] = a b^T in bf16, or fp32 += a b^T"""
    a: Callable  # rows; or columns, if memory has [k, m]
    b: Callable  # rows; or columns, if memory has [k, n]
    adds: bool


PLAIN_PRODUCTS = {
    "product_nt": PlainProduct(rows, rows, False),
    "product_nn": PlainProduct(rows, columns, False),
    "product_tn_added": PlainProduct(columns, columns, True),
}


def plain_product(name, tile):
    a_of, b_of, adds = PLAIN_PRODUCTS[name]
    of = AddedProduct if adds else Product
    kernel = product(of, tile)

    def added_to(d):
        return d if adds else None

    @cute.jit
    def launch(a: cute.Pointer, b: cute.Pointer, d: cute.Pointer, next_tile: cute.Pointer,
               m: Int32, n: Int32, k: Int32, groups: Int32, clusters: Int32, stream: cuda.CUstream):
        kernel(a_of(a, m, k), b_of(b, n, k), rows(d, m, n), added_to(rows(d, m, n)), of.EpilogueArguments(),
               schedule(tile, clusters, next_tile), None, stream)

    return launch


class GroupedProduct(NamedTuple):
    """Products of groups that divide the rows m of a, or the depth k, at offsets in device memory: group g has [offsets[g],
    offsets[g + 1]). Of the rest nothing enters a result."""
    b: Callable  # rows or columns, as above
    divides_depth: bool
    adds: bool = False


GROUPED_PRODUCTS = {
    "grouped_nt": GroupedProduct(rows, False),  # a [m, k], b [groups, n, k] -> d [m, n]
    "grouped_nn": GroupedProduct(columns, False),  # a [m, k], b [groups, k, n] -> d [m, n]
    "grouped_tn": GroupedProduct(columns, True),  # a [k, m], b [k, n] -> d [groups, m, n], 0 for groups without depth
    "grouped_tn_added": GroupedProduct(columns, True, True),  # the same, added to d
}


def of_groups(matrix, groups):
    """A matrix for each group, one after the other in memory."""
    shape, stride = matrix.shape, matrix.stride
    size = cute.assume(Int64(shape[0]) * Int64(shape[1]), divby=8)
    return cute.make_tensor(matrix.iterator, cute.make_layout((groups, *shape), stride=(size, *stride)))


def vector(base, count):
    return cute.make_tensor(base, cute.make_layout((count,), stride=(1,)))


def rows_of_groups(offsets, groups):
    return VarlenArguments(mCuSeqlensM=vector(offsets, groups + 1))


def grouped_product(name, tile):
    grouped = GROUPED_PRODUCTS[name]
    of = AddedProduct if grouped.adds else Product
    kernel = product(of, tile)

    def matrices(a, b, d, m, n, k, groups):
        if grouped.divides_depth:
            result = of_groups(rows(d, m, n), groups)
            return columns(a, m, k), columns(b, n, k), result, result if grouped.adds else None
        return rows(a, m, k), of_groups(grouped.b(b, n, k), groups), rows(d, m, n), None

    def divided(offsets, groups):
        return VarlenArguments(mCuSeqlensK=vector(offsets, groups + 1)) if grouped.divides_depth else rows_of_groups(offsets, groups)

    @cute.jit
    def launch(a: cute.Pointer, b: cute.Pointer, d: cute.Pointer, offsets: cute.Pointer, next_tile: cute.Pointer,
               m: Int32, n: Int32, k: Int32, groups: Int32, clusters: Int32, stream: cuda.CUstream):
        kernel(*matrices(a, b, d, m, n, k, groups), of.EpilogueArguments(), schedule(tile, clusters, next_tile), divided(offsets, groups), stream)

    return launch


def grouped_linear_swiglu(tile):
    """x [m, k], w [groups, n, k], offsets [groups + 1], weights [m] -> gate_up [m, n], y [m, n / 2]"""
    kernel = product(GroupedLinearSwiglu, tile)

    @cute.jit
    def launch(x: cute.Pointer, w: cute.Pointer, offsets: cute.Pointer, weights: cute.Pointer, gate_up: cute.Pointer, y: cute.Pointer,
               next_tile: cute.Pointer, m: Int32, n: Int32, k: Int32, groups: Int32, clusters: Int32, stream: cuda.CUstream):
        kernel(rows(x, m, k), of_groups(rows(w, n, k), groups), rows(gate_up, m, n), None,
               GroupedLinearSwiglu.EpilogueArguments(rows(y, m, n // 2), vector(weights, m)), schedule(tile, clusters, next_tile),
               rows_of_groups(offsets, groups), stream)

    return launch


def grouped_linear_dgrad_swiglu_backward(tile):
    """dy [m, k], w [groups, k, n], offsets [groups + 1], gate_up [m, 2 n], weights [m] -> d_gate_up [m, 2 n],
    parts of d_weights [tiles of columns, m]"""
    kernel = product(GroupedLinearDgradSwigluBackward, tile)
    kernel.cd_packed = "n"
    kernel.implicit_dtype = BFloat16

    @cute.jit
    def launch(dy: cute.Pointer, w: cute.Pointer, offsets: cute.Pointer, gate_up: cute.Pointer, weights: cute.Pointer, d_gate_up: cute.Pointer,
               d_weights: cute.Pointer, next_tile: cute.Pointer, m: Int32, n: Int32, k: Int32, groups: Int32, clusters: Int32, stream: cuda.CUstream):
        parts = cute.make_tensor(d_weights, cute.make_layout((m, (n + tile.columns - 1) // tile.columns), stride=(1, Int64(m))))
        kernel(rows(dy, m, k), of_groups(columns(w, n, k), groups), rows(d_gate_up, m, 2 * n), rows(gate_up, m, 2 * n),
               GroupedLinearDgradSwigluBackward.EpilogueArguments(vector(weights, m), parts), schedule(tile, clusters, next_tile),
               rows_of_groups(offsets, groups), stream)

    return launch


class Kind(NamedTuple):
    launcher: Callable  # of a tile
    pointers: list  # of its operands


def kinds():
    bf16, fp32, words, counts = pointer(BFloat16), pointer(Float32), pointer(Float32, 4), pointer(Int32, 4)
    found = {
        "linear_swiglu": Kind(linear_swiglu, [bf16] * 4),
        "linear_dgrad_swiglu_backward": Kind(linear_dgrad_swiglu_backward, [bf16] * 4),
        "grouped_linear_swiglu": Kind(grouped_linear_swiglu, [bf16, bf16, counts, words, bf16, bf16]),
        "grouped_linear_dgrad_swiglu_backward": Kind(grouped_linear_dgrad_swiglu_backward, [bf16, bf16, counts, bf16, words, bf16, words]),
    }
    for name, plain_kind in PLAIN_PRODUCTS.items():
        found[name] = Kind(partial(plain_product, name), [bf16, bf16, fp32 if plain_kind.adds else bf16])
    for name, grouped in GROUPED_PRODUCTS.items():  # gradients of weights are fp32
        found[name] = Kind(partial(grouped_product, name), [bf16, bf16, fp32 if grouped.divides_depth else bf16, counts])
    return found


def compile_into(folder):
    """The objects, products.h that includes their headers, and products.inc, which lists them."""
    one = Int32(1)
    headers, entries = [], []
    for kind, (launcher, pointers) in kinds().items():
        operands = "".join(f"p[{i}], " for i in range(len(pointers)))
        for tile in TILES[kind]:
            name = f"{kind}_{tile}"
            export(folder, name, launcher(tile), *pointers, pointer(Int32, 4), one, one, one, one, one)
            headers.append(f"#include <{name}.h>\n")
            entries.append(f'{{"{kind}", "{tile}", {len(pointers)}, {tile.columns}, {CLUSTER}, {str(tile.dynamic).lower()},\n'
                           f'  _mlir_{name}_cuda_init, _mlir_{name}_cuda_load_to_device,\n'
                           f"  [](void* const* p, auto... rest) {{ return cute_dsl_{name}_wrapper(nullptr, {operands}rest...); }}}},\n")
    (folder / "products.h").write_text("".join(headers))
    (folder / "products.inc").write_text("".join(entries))
