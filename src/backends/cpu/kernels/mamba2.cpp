// The state space in chunks (Dao and Gu, Transformers are SSMs, 2024, section 6), one head of one
// sequence at a time: products of the rows of a chunk, and the state that earlier chunks left.
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/mamba2_parts.h"
#include "ops/attributes.h"
#include "ops/mamba2_section.h"

namespace braid {
namespace {

using namespace mamba;

/// Scratch of one worker, for one head.
template <class W>
struct HeadScratch {
  ChunkSteps<W> steps;
  W* scores;  // [chunk, chunk]
  W* out;     // [chunk, head_size]
  W* state;   // [head_size, state]

  HeadScratch(const Sizes& sizes, ScratchCursor& cursor)
      : steps(sizes, cursor),
        scores(cursor.take<W>(sizes.chunk() * sizes.chunk())),
        out(cursor.take<W>(sizes.chunk() * sizes.a.head_size)),
        state(cursor.take<W>(sizes.state_elems())) {}
};

template <class W>
size_t head_scratch_bytes(const Sizes& sizes) {
  ScratchCursor cursor(nullptr);
  HeadScratch<W>(sizes, cursor);
  return cursor.bytes();
}

/// out = exp(l_i) S C_i, what earlier chunks add to the results.
template <class W>
void read_state(const Sizes& sizes, const HeadChunk<W>& chunk, const HeadScratch<W>& scratch) {
  const int64_t size = sizes.a.head_size;
  gemm_on_this_thread<W>({.transpose_b = true,
                          .m = chunk.rows,
                          .n = size,
                          .k = sizes.a.state,
                          .a = chunk.c,
                          .lda = chunk.stride,
                          .b = scratch.state,
                          .ldb = sizes.a.state,
                          .c = scratch.out,
                          .ldc = size});
  for (int64_t i = 0; i < chunk.rows; ++i) {
    for (int64_t p = 0; p < size; ++p) {
      scratch.out[i * size + p] *= scratch.steps.from_begin[i];
    }
  }
}

/// out (+)= sum over j <= i of (C_i B_j) exp(l_i - l_j) dt_j x_j.
template <class W>
void read_rows(const Sizes& sizes, const HeadChunk<W>& chunk, bool has_state,
               const HeadScratch<W>& scratch) {
  multiply_rows(sizes, chunk,
                {.depth = sizes.a.state, .a = chunk.c, .a_stride = chunk.stride, .b = chunk.b},
                scratch.scores);
  for (int64_t i = 0; i < chunk.rows; ++i) {
    W* const row = scratch.scores + i * sizes.chunk();
    decay_row(scratch.steps, i, row);
    std::fill(row + i + 1, row + chunk.rows, W(0));
  }
  gemm_on_this_thread<W>({.m = chunk.rows,
                          .n = sizes.a.head_size,
                          .k = chunk.rows,
                          .a = scratch.scores,
                          .lda = sizes.chunk(),
                          .b = chunk.x,
                          .ldb = chunk.stride,
                          .c = scratch.out,
                          .ldc = sizes.a.head_size,
                          .beta = has_state ? 1.0 : 0.0});
}

/// All heads of all sequences.
template <class T>
struct Problem {
  const Sizes& sizes;
  const Inputs<T>& inputs;
  const Wide<T>* xbc;      // [rows, convolved]
  const Wide<T>* initial;  // [sequences, heads, head_size, state]; null: 0
  T* y;                    // [rows, inner]
};

/// y of one head in all rows of a sequence.
template <class T, class W = Wide<T>>
void run_head(const Problem<T>& problem, int64_t sequence, int64_t head,
              const HeadScratch<W>& scratch) {
  const auto& [sizes, inputs, xbc, initial, y] = problem;
  const Mamba2Attributes& a = sizes.a;
  const HeadWeights<W> weights(inputs, head);
  const int64_t first_row = sequence * a.sequence;
  if (initial != nullptr) {
    const int64_t size = sizes.state_elems();
    std::copy_n(initial + (sequence * a.heads + head) * size, size, scratch.state);
  }
  for (int64_t index = 0; index < sizes.chunks(); ++index) {
    const int64_t begin = first_row + index * sizes.chunk();
    const auto chunk = head_chunk(sizes, xbc, begin, sizes.chunk_rows(index), head);
    const bool has_state = index > 0 || initial != nullptr;
    scratch.steps.set(sizes, weights, inputs.zxbcdt + begin * a.row_elems() + a.dt_begin() + head,
                      chunk.rows);
    if (has_state) {
      read_state(sizes, chunk, scratch);
    }
    read_rows(sizes, chunk, has_state, scratch);
    for (int64_t i = 0; i < chunk.rows; ++i) {
      T* const to = y + (begin + i) * a.inner() + head * a.head_size;
      for (int64_t p = 0; p < a.head_size; ++p) {
        store(to, p,
              scratch.out[i * a.head_size + p] + weights.skip * chunk.x[i * chunk.stride + p]);
      }
    }
    advance_state(sizes, chunk, scratch.steps, has_state, scratch.state);
  }
}

template <class T>
struct Forward {
  using W = Wide<T>;
  Taps<W> taps;
  W* xbc;  // [rows, convolved]
  size_t shared_bytes;
  size_t head_bytes;

  Forward(const Sizes& sizes, std::byte* base) : Forward(sizes, ScratchCursor(base)) {}

 private:
  Forward(const Sizes& sizes, ScratchCursor cursor)
      : taps(sizes, cursor),
        xbc(cursor.take<W>(sizes.rows * sizes.a.convolved())),
        shared_bytes(cursor.bytes()),
        head_bytes(head_scratch_bytes<W>(sizes)) {}
};

/// `is_section`: sequences begin with given rows and states, the two operands behind the weights.
template <class T>
void run_forward(const Sizes& sizes, bool is_section, const KernelArgs& args) {
  using W = Wide<T>;
  const Mamba2Attributes& a = sizes.a;
  const Inputs<T> inputs(args, a);
  const Forward<T> scratch(sizes, args.scratch.data());
  const size_t results = is_section ? 9 : 7;
  T* const y = args.data<T>(results);
  W* const rstd = args.data<W>(results + 1);
  T* const v = args.data<T>(results + 2);
  scratch.taps.load(sizes, inputs);
  const ConvRows<T> rows{.zxbcdt = inputs.zxbcdt,
                         .before = is_section ? args.data<const T>(7) : nullptr};
  convolve(args.workers, sizes, rows, scratch.taps, scratch.xbc);
  const Problem<T> problem{.sizes = sizes,
                           .inputs = inputs,
                           .xbc = scratch.xbc,
                           .initial = is_section ? args.data<const W>(8) : nullptr,
                           .y = y};
  run_pieces(args.workers, sizes.sequences() * a.heads, 1,
             [&](int worker, int64_t at, int64_t end) {
               ScratchCursor cursor(args.scratch.data() + scratch.shared_bytes +
                                    static_cast<size_t>(worker) * scratch.head_bytes);
               const HeadScratch<W> head_scratch(sizes, cursor);
               for (; at < end; ++at) {
                 run_head(problem, at / a.heads, at % a.heads, head_scratch);
               }
             });
  run_pieces(args.workers, sizes.rows, row_grain(a.inner()), [&](int, int64_t row, int64_t end) {
    for (; row < end; ++row) {
      norm_row(a, y + row * a.inner(), inputs.zxbcdt + row * a.row_elems(), inputs.norm_weight,
               rstd + row * a.norm_groups, v + row * a.inner());
    }
  });
}

CpuKernel make_forward(const OpSpec& spec, const Mamba2Attributes& a, bool is_section,
                       int num_workers) {
  const Sizes sizes(spec, a);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    const Forward<T> scratch(sizes, nullptr);
    return {.run = [sizes, is_section](
                       const KernelArgs& args) { run_forward<T>(sizes, is_section, args); },
            .scratch_bytes =
                scratch.shared_bytes + static_cast<size_t>(num_workers) * scratch.head_bytes};
  });
}

}  // namespace

CpuKernel make_mamba2(const OpSpec& spec, int num_workers) {
  return make_forward(spec, attributes_of<Mamba2Attributes>(spec), false, num_workers);
}

CpuKernel make_mamba2_section(const OpSpec& spec, int num_workers) {
  return make_forward(spec, attributes_of<Mamba2SectionAttributes>(spec).core, true, num_workers);
}

}  // namespace braid
