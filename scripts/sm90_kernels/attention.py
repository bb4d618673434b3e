"""Attention and its backward of flash-attn-4 (BSD-3-Clause; Shah et al., FlashAttention-3, 2024). Our changes to the kernels, which fail
loudly where their text is not the one they were made for, are `*_CHANGES`."""

import importlib.util
import pathlib
import sys

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64

from export import export, pointer

IN_TWO_STAGES = {"Q_stage": 2, "dO_stage": 2, "PdS_stage": 2, "SdP_swapAB": True}
# Rows of queries and of keys of a backward's tile, and what its shared memory holds, by head size. They are the package's own.
BACKWARD_TILES = {
    64: (128, 128, IN_TWO_STAGES),
    128: (64, 128, IN_TWO_STAGES),
    192: (64, 96, {"Q_stage": 2, "dO_stage": 2, "PdS_stage": 1, "SdP_swapAB": False, "dKV_swapAB": True}),
}
# Heads of latent attention: as many of keys and values as of queries, and values are zero from element 128 on.
LATENT_HEAD_SIZE, LATENT_VALUE_SIZE = 192, 128
# Text of flash_fwd_sm90.py, and what stands for it here.
FORWARD_CHANGES = [
    # How many query heads share a key/value head is known at run time only.
    ("head_idx // self.qhead_per_kvhead if", "head_idx // (cute.size(mQ.shape[2]) // cute.size(mK.shape[2])) if"),
]
# The same of flash_bwd_sm90.py.
BACKWARD_CHANGES = [
    # d_key and d_value of every query head are stored on their own in fp32, and summed in the order of heads by a kernel of ours: to
    # add them up here in a fixed order, the blocks of a group would wait for each other.
    ("deterministic_KV = self.deterministic and self.qhead_per_kvhead > 1", "deterministic_KV = False"),
    ("if const_expr(self.deterministic and self.qhead_per_kvhead > 1):", "if const_expr(False):"),
    ("            head_idx_kv = head_idx // qhead_per_kvhead_divmod\n            if const_expr(deterministic_KV)",
     "            head_idx_kv = head_idx\n            if const_expr(deterministic_KV)"),
    ("copy_utils.cpasync_reduce_bulk_add_f32(\n                            sdKaccum[None",
     "copy_utils.cpasync_bulk_s2g(\n                            sdKaccum[None"),
    ("copy_utils.cpasync_reduce_bulk_add_f32(\n                            sdVaccum[None",
     "copy_utils.cpasync_bulk_s2g(\n                            sdVaccum[None"),
    # The group again.
    ("FastDivmodDivisorV2(self.qhead_per_kvhead)",
     "FastDivmodDivisorV2(cute.size(mQ.shape[2]) // cute.size(mK.shape[2]))"),
    # The kernel in front zeroes the semaphores, which are read before the kernel would wait for it.
    ("use_pdl=True", "use_pdl=False"),
]


def changed_module(folder, name, changes):
    """A module of the package with changes made to a copy in `folder` (the compiler reads the source of what it compiles)."""
    text = (pathlib.Path(sys.modules["flash_attn.cute"].__path__[0]) / f"{name}.py").read_text()
    for old, new in changes:
        if text.count(old) != 1:
            sys.exit(f"compile.py: {name}.py has {text.count(old)} times: {old}")
        text = text.replace(old, new)
    path = folder / f"{name}_changed.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def times(value, step):
    return cute.assume(Int64(value) * step, divby=step)


def packed(base, sizes, first, count, heads_of_row, elements=None):
    """[batch, token, head, element] of `count` heads from `first` on, in rows of `heads_of_row` heads; all elements of a head, or the
    first ones."""
    batches, sequence, head_size = sizes
    return cute.make_tensor(base + times(first, head_size), cute.make_layout(
        (batches, sequence, count, elements or head_size),
        stride=(times(Int64(sequence) * heads_of_row, head_size), times(heads_of_row, head_size), head_size, 1)))


def forward(kernel_class, head_size):
    """The host function: shapes and strides of the operands of braid's attention."""
    kernel = kernel_class(
        BFloat16, head_size, head_size, 2, is_causal=True, is_local=False, pack_gqa=False, tile_m=192 if head_size == 64 else 128,
        tile_n=128, num_stages=2, num_threads=384, Q_in_regs=False, intra_wg_overlap=True, mma_pv_is_rs=True)

    @cute.jit
    def launch(qkv: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, batches: Int32, sequence: Int32, heads: Int32,
               kv_heads: Int32, scale: Float32, stream: cuda.CUstream):
        sizes = (batches, sequence, head_size)
        row_heads = heads + 2 * kv_heads
        kernel(packed(qkv, sizes, 0, heads, row_heads),
               packed(qkv, sizes, heads, kv_heads, row_heads),
               packed(qkv, sizes, heads + kv_heads, kv_heads, row_heads),
               packed(out, sizes, 0, heads, heads),
               cute.make_tensor(lse, cute.make_layout(
                   (batches, heads, sequence), stride=(Int64(heads) * sequence, Int64(sequence), 1))),
               scale,
               stream=stream)

    return launch


def backward(kernel_class, head_size, grouped):
    """The host function: shapes and strides of the operands of braid's attention_backward and of its scratch. Grouped: several query
    heads share a key/value head, and d_key and d_value are fp32 of every query head; else they are heads of a row of d_qkv."""
    query_tile, key_tile, stages = BACKWARD_TILES[head_size]
    value_size = LATENT_VALUE_SIZE if head_size == LATENT_HEAD_SIZE else head_size
    kernel = kernel_class(
        BFloat16, head_size, value_size, qhead_per_kvhead=2 if grouped else 1, is_causal=True, deterministic=True, tile_m=query_tile,
        tile_n=key_tile, **stages, AtomLayoutMSdP=1, AtomLayoutNdKV=2, AtomLayoutMdQ=query_tile // 64)

    @cute.jit
    def launch(qkv: cute.Pointer, d_out: cute.Pointer, lse_log2: cute.Pointer, d_out_out: cute.Pointer, d_query: cute.Pointer,
               d_key: cute.Pointer, d_value: cute.Pointer, semaphores: cute.Pointer, batches: Int32, sequence: Int32, heads: Int32,
               kv_heads: Int32, scale: Float32, stream: cuda.CUstream):
        query_tiles = cute.ceil_div(sequence, query_tile)
        query_rows = query_tiles * query_tile
        key_rows = cute.ceil_div(sequence, key_tile) * key_tile
        row_heads = heads + 2 * kv_heads  # of qkv and d_qkv
        sizes = (batches, sequence, head_size)

        def per_head(base, rows, step):
            """[batch, query head, `step` values per row]"""
            return cute.make_tensor(base, cute.make_layout(
                (batches, heads, rows * step), stride=(times(Int64(heads) * rows, step), times(rows, step), 1)))

        def key_gradient(base, elements):
            return per_head(base, key_rows, head_size) if grouped else packed(base, sizes, 0, kv_heads, row_heads, elements)

        kernel(packed(qkv, sizes, 0, heads, row_heads),
               packed(qkv, sizes, heads, kv_heads, row_heads),
               packed(qkv, sizes, heads + kv_heads, kv_heads, row_heads, value_size),
               packed(d_out, sizes, 0, heads, heads, value_size),
               per_head(lse_log2, query_rows, 1),
               per_head(d_out_out, query_rows, 1),
               per_head(d_query, query_rows, head_size),
               key_gradient(d_key, head_size),
               key_gradient(d_value, value_size),
               scale, None, None, None, None, None, None,
               cute.make_tensor(semaphores, cute.make_layout(
                   (batches, heads, query_tiles, 1), stride=(heads * query_tiles, query_tiles, 1, 1))),
               stream=stream)

    return launch


def compile_into(folder):
    forward_class = changed_module(folder, "flash_fwd_sm90", FORWARD_CHANGES).FlashAttentionForwardSm90
    backward_class = changed_module(folder, "flash_bwd_sm90", BACKWARD_CHANGES).FlashAttentionBackwardSm90
    one = Int32(1)
    sizes = [one, one, one, one, Float32(1)]  # batches, sequence, heads, key/value heads, scale
    rows, sums = pointer(BFloat16), pointer(Float32)
    for head_size in (64, 128):
        export(folder, f"attention_forward_{head_size}", forward(forward_class, head_size), rows, rows, pointer(Float32, 4), *sizes)
    for head_size in BACKWARD_TILES:
        for grouped in (False,) if head_size == LATENT_HEAD_SIZE else (False, True):
            gradient = sums if grouped else rows
            export(folder, f"attention_backward_{head_size}{'_grouped' if grouped else ''}",
                   backward(backward_class, head_size, grouped), rows, rows, sums, sums, sums, gradient, gradient, pointer(Int32, 4),
                   *sizes)
