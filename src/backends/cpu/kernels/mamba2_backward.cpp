// Backward of the state space in chunks. For each head a walk forward over the chunks of a sequence
// computes the states in front of them again; a walk backward carries G, the gradient of the
// outgoing state, and adds up the gradients. With L_ij = exp(l_i - l_j) for i >= j, K_ij = dy_i
// x_j, T_ij = L_ij K_ij dt_j and incoming state S:
//   v_j = sum over i >= j of (C_i B_j) L_ij dy_i + exp(l_last - l_j) G B_j
//   dx_j = dt_j v_j + skip dy_j,  d_dt_j = x_j v_j + A d(dt A)_j
//   dB_j = sum over i >= j of T_ij C_i + exp(l_last - l_j) dt_j G^T x_j, summed over heads
//   dC_i = sum over j <= i of T_ij B_j + exp(l_i) S^T dy_i, summed over heads
//   d(dt A)_j = sum over i >= j > k of (C_i B_k) T_ik + sum over k < j of w_k
//               + sum over i >= j of exp(l_i) dy_i S C_i + exp(l_last) <G, S>,
//               w_k = exp(l_last - l_k) dt_k x_k G B_k
// The last sums are computed as written: differences of sums over rows and over columns, which are
// shorter, cancel.
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/mamba2_parts.h"
#include "backends/cpu/kernels/mamba2_row_grads.h"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace mamba;

/// The heads of a group are cut into so many runs at most. Each adds the gradients of B and C of
/// its heads in order, then those of the runs are added: the order depends only on the sizes.
constexpr int64_t kMaxRuns = 4;

int64_t heads_per_group(const Mamba2Attributes& a) {
  return a.heads / a.groups;
}
int64_t runs_of(const Mamba2Attributes& a) {
  return std::min(kMaxRuns, heads_per_group(a));
}
/// Columns of B and C of all groups.
int64_t bc_elems(const Mamba2Attributes& a) {
  return 2 * a.groups * a.state;
}

/// Scratch of one worker, for one head.
template <class W>
struct HeadScratch {
  ChunkSteps<W> steps;
  W* weights;     // [chunk, chunk]: C_i B_j, then times L_ij
  W* t;           // [chunk, chunk]: K_ij, then T_ij
  W* addends;     // [chunk]
  W* d_dta;       // [chunk]
  W* v;           // [chunk, head_size]
  W* dy_state;    // [chunk, state], rows S^T dy_i
  W* x_grad;      // [chunk, state], rows G^T x_j
  W* grad_state;  // G [head_size, state]
  W* states;      // [chunks, head_size, state], in front of each chunk

  HeadScratch(const Sizes& sizes, ScratchCursor& cursor) : steps(sizes, cursor) {
    const int64_t chunk = sizes.chunk();
    weights = cursor.take<W>(chunk * chunk);
    t = cursor.take<W>(chunk * chunk);
    addends = cursor.take<W>(chunk);
    d_dta = cursor.take<W>(chunk);
    v = cursor.take<W>(chunk * sizes.a.head_size);
    dy_state = cursor.take<W>(chunk * sizes.a.state);
    x_grad = cursor.take<W>(chunk * sizes.a.state);
    grad_state = cursor.take<W>(sizes.state_elems());
    states = cursor.take<W>(sizes.chunks() * sizes.state_elems());
  }
};

/// Gradients of one head's weights, of one sequence.
template <class W>
struct HeadSums {
  W dt_bias = 0, a = 0, skip = 0;
};

/// States at the ends of sequences, [sequences, heads, head_size, state].
template <class W>
struct EndStates {
  const W* initial = nullptr;  // in front of each; null: 0
  const W* d_final = nullptr;  // gradients of those behind each; null: 0
};

/// One head of one sequence, and where its gradients go.
template <class T>
struct HeadProblem {
  using W = Wide<T>;
  const Sizes& sizes;
  const Inputs<T>& inputs;
  EndStates<W> ends;  // of this sequence and head
  const W* xbc;       // [rows, convolved]
  const W* dy;        // [rows, inner]
  W* d_xbc;           // [rows, convolved]: columns of x
  W* d_bc;            // [rows, bc_elems], of this run of heads
  T* d_zxbcdt;        // columns of dt
  int64_t first_row;
  int64_t head;
  bool adds_bc;  // to d_bc; otherwise writes it
};

/// A chunk of it.
template <class T>
struct ChunkProblem {
  using W = Wide<T>;
  HeadChunk<W> in;
  const W* dy;  // [rows, head_size], `inner` apart
  W* dx;        // [rows, head_size], `convolved` apart
  W* db;        // [rows, state], bc_elems apart, like dc
  W* dc;
  const T* raw;  // dt before bias and softplus, row_elems apart, like d_raw
  T* d_raw;
  const W* state;  // in front of it; null: 0
  bool has_grad;   // G is not 0

  ChunkProblem(const HeadProblem<T>& p, int64_t index, const W* states) {
    const Mamba2Attributes& a = p.sizes.a;
    const int64_t begin = p.first_row + index * p.sizes.chunk();
    in = head_chunk(p.sizes, p.xbc, begin, p.sizes.chunk_rows(index), p.head);
    dy = p.dy + begin * a.inner() + p.head * a.head_size;
    dx = p.d_xbc + begin * a.convolved() + p.head * a.head_size;
    db = p.d_bc + begin * bc_elems(a) + a.group_of(p.head) * a.state;
    dc = db + a.groups * a.state;
    raw = p.inputs.zxbcdt + begin * a.row_elems() + a.dt_begin() + p.head;
    d_raw = p.d_zxbcdt + begin * a.row_elems() + a.dt_begin() + p.head;
    const bool has_state = index > 0 || p.ends.initial != nullptr;
    state = has_state ? states + index * p.sizes.state_elems() : nullptr;
    has_grad = index + 1 < p.sizes.chunks() || p.ends.d_final != nullptr;
  }
};

template <class W>
W dot(const W* a, const W* b, int64_t size) {
  W sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

/// to += factor * from.
template <class W>
void add_scaled(W factor, const W* from, int64_t size, W* to) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    to[i] += factor * from[i];
  }
}

/// The states in front of all chunks.
template <class T, class W = Wide<T>>
void compute_states(const HeadProblem<T>& p, const HeadWeights<W>& weights,
                    const HeadScratch<W>& scratch) {
  const int64_t size = p.sizes.state_elems();
  if (p.ends.initial != nullptr) {
    std::copy_n(p.ends.initial, size, scratch.states);
  }
  for (int64_t index = 0; index + 1 < p.sizes.chunks(); ++index) {
    const ChunkProblem<T> chunk(p, index, scratch.states);
    W* const next = scratch.states + (index + 1) * size;
    if (chunk.state != nullptr) {
      std::copy_n(chunk.state, size, next);
    }
    scratch.steps.set(p.sizes, weights, chunk.raw, chunk.in.rows);
    advance_state(p.sizes, chunk.in, scratch.steps, chunk.state != nullptr, next);
  }
}

/// Row i of `weights` and `t` from C_i B_j and K_ij, and what the row adds to d(dt A).
template <class W>
void decay_pairs(const Sizes& sizes, int64_t i, int64_t rows, const HeadScratch<W>& scratch) {
  W* const weights = scratch.weights + i * sizes.chunk();
  W* const t = scratch.t + i * sizes.chunk();
  const ChunkSteps<W>& steps = scratch.steps;
  const W last = steps.l[i];
#pragma omp simd
  for (int64_t j = 0; j <= i; ++j) {
    const W decay = vector_math::exp(last - steps.l[j]);
    t[j] *= decay * steps.dt[j];
    scratch.addends[j] = weights[j] * t[j];
    weights[j] *= decay;
  }
  std::fill(weights + i + 1, weights + rows, W(0));
  std::fill(t + i + 1, t + rows, W(0));
  W earlier = 0;
  for (int64_t j = 1; j <= i; ++j) {
    earlier += scratch.addends[j - 1];
    scratch.d_dta[j] += earlier;
  }
}

template <class T, class W = Wide<T>>
void multiply_pairs(const Sizes& sizes, const ChunkProblem<T>& chunk,
                    const HeadScratch<W>& scratch) {
  const HeadChunk<W>& in = chunk.in;
  multiply_rows(sizes, in, {.depth = sizes.a.state, .a = in.c, .a_stride = in.stride, .b = in.b},
                scratch.weights);
  multiply_rows(sizes, in,
                {.depth = sizes.a.head_size, .a = chunk.dy, .a_stride = sizes.a.inner(), .b = in.x},
                scratch.t);
  std::fill_n(scratch.d_dta, in.rows, W(0));
  for (int64_t i = 0; i < in.rows; ++i) {
    decay_pairs(sizes, i, in.rows, scratch);
  }
}

/// rows [in.rows, state] = x m, x [rows, head_size], m [head_size, state].
template <class T, class W = Wide<T>>
void multiply_state(const Sizes& sizes, const ChunkProblem<T>& chunk, const W* x, int64_t stride,
                    const W* m, W* rows) {
  gemm_on_this_thread<W>({.m = chunk.in.rows,
                          .n = sizes.a.state,
                          .k = sizes.a.head_size,
                          .a = x,
                          .lda = stride,
                          .b = m,
                          .ldb = sizes.a.state,
                          .c = rows,
                          .ldc = sizes.a.state});
}

/// What the incoming state and G add to d(dt A).
template <class T, class W = Wide<T>>
void add_state_decays(const Sizes& sizes, const ChunkProblem<T>& chunk,
                      const HeadScratch<W>& scratch) {
  const HeadChunk<W>& in = chunk.in;
  const ChunkSteps<W>& steps = scratch.steps;
  const int64_t state = sizes.a.state;
  if (chunk.state != nullptr) {
    W later = 0;
    for (int64_t i = in.rows - 1; i >= 0; --i) {
      later += steps.from_begin[i] * dot(scratch.dy_state + i * state, in.c + i * in.stride, state);
      scratch.d_dta[i] += later;
    }
  }
  if (chunk.has_grad) {
    W earlier = chunk.state == nullptr
                    ? W(0)
                    : steps.from_begin[in.rows - 1] *
                          dot(scratch.grad_state, chunk.state, sizes.state_elems());
    for (int64_t j = 0; j < in.rows; ++j) {
      scratch.d_dta[j] += earlier;
      earlier += steps.to_end[j] * steps.dt[j] *
                 dot(scratch.x_grad + j * state, in.b + j * in.stride, state);
    }
  }
}

/// v, from G and the rows of the chunk.
template <class T, class W = Wide<T>>
void compute_v(const Sizes& sizes, const ChunkProblem<T>& chunk, const HeadScratch<W>& scratch) {
  const int64_t size = sizes.a.head_size;
  const int64_t rows = chunk.in.rows;
  if (chunk.has_grad) {
    gemm_on_this_thread<W>({.transpose_b = true,
                            .m = rows,
                            .n = size,
                            .k = sizes.a.state,
                            .a = chunk.in.b,
                            .lda = chunk.in.stride,
                            .b = scratch.grad_state,
                            .ldb = sizes.a.state,
                            .c = scratch.v,
                            .ldc = size});
    for (int64_t j = 0; j < rows; ++j) {
      for (int64_t p = 0; p < size; ++p) {
        scratch.v[j * size + p] *= scratch.steps.to_end[j];
      }
    }
  }
  gemm_on_this_thread<W>({.transpose_a = true,
                          .m = rows,
                          .n = size,
                          .k = rows,
                          .a = scratch.weights,
                          .lda = sizes.chunk(),
                          .b = chunk.dy,
                          .ldb = sizes.a.inner(),
                          .c = scratch.v,
                          .ldc = size,
                          .beta = chunk.has_grad ? 1.0 : 0.0});
}

/// dB and dC of this head, written or added.
template <class T, class W = Wide<T>>
void add_bc_grads(const HeadProblem<T>& p, const ChunkProblem<T>& chunk,
                  const HeadScratch<W>& scratch) {
  const int64_t state = p.sizes.a.state;
  const int64_t stride = bc_elems(p.sizes.a);
  const int64_t rows = chunk.in.rows;
  const auto multiply = [&](bool transpose, const W* with, W* sum) {
    gemm_on_this_thread<W>({.transpose_a = transpose,
                            .m = rows,
                            .n = state,
                            .k = rows,
                            .a = scratch.t,
                            .lda = p.sizes.chunk(),
                            .b = with,
                            .ldb = chunk.in.stride,
                            .c = sum,
                            .ldc = stride,
                            .beta = p.adds_bc ? 1.0 : 0.0});
  };
  multiply(true, chunk.in.c, chunk.db);
  multiply(false, chunk.in.b, chunk.dc);
  for (int64_t i = 0; i < rows; ++i) {
    if (chunk.has_grad) {
      add_scaled(scratch.steps.to_end[i] * scratch.steps.dt[i], scratch.x_grad + i * state, state,
                 chunk.db + i * stride);
    }
    if (chunk.state != nullptr) {
      add_scaled(scratch.steps.from_begin[i], scratch.dy_state + i * state, state,
                 chunk.dc + i * stride);
    }
  }
}

/// Derivative of dt with respect to what softplus is of.
template <class W>
W step_slope(const Mamba2Attributes& a, W x) {
  const W step = softplus(x);
  return step >= static_cast<W>(a.dt_min) && step <= static_cast<W>(a.dt_max)
             ? vector_math::sigmoid(x)
             : W(0);
}

/// dx, the gradient of dt before softplus, and what the rows add to gradients of weights.
template <class T, class W = Wide<T>>
void finish_rows(const Mamba2Attributes& a, const ChunkProblem<T>& chunk,
                 const HeadWeights<W>& weights, const HeadScratch<W>& scratch, HeadSums<W>& sums) {
  for (int64_t j = 0; j < chunk.in.rows; ++j) {
    const W* const v = scratch.v + j * a.head_size;
    const W* const x = chunk.in.x + j * chunk.in.stride;
    const W* const dy = chunk.dy + j * a.inner();
    W* const dx = chunk.dx + j * a.convolved();
    const W dt = scratch.steps.dt[j];
#pragma omp simd
    for (int64_t p = 0; p < a.head_size; ++p) {
      dx[p] = dt * v[p] + weights.skip * dy[p];
    }
    const W d_dt = dot(x, v, a.head_size) + weights.a * scratch.d_dta[j];
    const W raw = static_cast<W>(chunk.raw[j * a.row_elems()]) + weights.dt_bias;
    const W d_raw = d_dt * step_slope(a, raw);
    store(chunk.d_raw, j * a.row_elems(), d_raw);
    sums.dt_bias += d_raw;
    sums.a += dt * scratch.d_dta[j];
    sums.skip += dot(dy, x, a.head_size);
  }
}

template <class T, class W = Wide<T>>
HeadSums<W> run_head(const HeadProblem<T>& p, const HeadScratch<W>& scratch) {
  const HeadWeights<W> weights(p.inputs, p.head);
  HeadSums<W> sums;
  compute_states(p, weights, scratch);
  if (p.ends.d_final != nullptr) {
    std::copy_n(p.ends.d_final, p.sizes.state_elems(), scratch.grad_state);
  }
  for (int64_t index = p.sizes.chunks() - 1; index >= 0; --index) {
    const ChunkProblem<T> chunk(p, index, scratch.states);
    scratch.steps.set(p.sizes, weights, chunk.raw, chunk.in.rows);
    multiply_pairs(p.sizes, chunk, scratch);
    if (chunk.state != nullptr) {
      multiply_state(p.sizes, chunk, chunk.dy, p.sizes.a.inner(), chunk.state, scratch.dy_state);
    }
    if (chunk.has_grad) {
      multiply_state(p.sizes, chunk, chunk.in.x, chunk.in.stride,
                     static_cast<const W*>(scratch.grad_state), scratch.x_grad);
    }
    add_state_decays(p.sizes, chunk, scratch);
    compute_v(p.sizes, chunk, scratch);
    add_bc_grads(p, chunk, scratch);
    finish_rows(p.sizes.a, chunk, weights, scratch, sums);
    retreat_state(p.sizes, chunk.in, {chunk.dy, chunk.has_grad}, scratch.steps, scratch.grad_state);
  }
  sums.a *= weights.a;  // with respect to a_log
  return sums;
}

template <class T>
struct Backward {
  using W = Wide<T>;
  ConvolutionGrads<T> convolution;
  W* xbc;            // [rows, convolved]
  W* dy;             // [rows, inner]
  W* d_bc;           // [runs, rows, bc_elems]
  W* head_sums;      // [3, sequences, heads]
  W* norm_partials;  // [row blocks, inner]
  size_t shared_bytes;
  size_t head_bytes;

  Backward(const Sizes& sizes, int num_workers, std::byte* base)
      : Backward(sizes, num_workers, ScratchCursor(base)) {}

 private:
  Backward(const Sizes& sizes, int num_workers, ScratchCursor cursor)
      : convolution(sizes, num_workers, cursor),
        xbc(cursor.take<W>(sizes.rows * sizes.a.convolved())),
        dy(cursor.take<W>(sizes.rows * sizes.a.inner())),
        d_bc(cursor.take<W>(runs_of(sizes.a) * sizes.rows * bc_elems(sizes.a))),
        head_sums(cursor.take<W>(3 * sizes.sequences() * sizes.a.heads)),
        norm_partials(cursor.take<W>(RowBlocks{sizes.rows}.count() * sizes.a.inner())),
        shared_bytes(cursor.bytes()) {
    ScratchCursor head(nullptr);
    HeadScratch<W>(sizes, head);
    head_bytes = head.bytes();
  }
};

/// All heads of all sequences. Pieces are runs of heads.
template <class T>
void run_heads(const KernelArgs& args, const Sizes& sizes, const Inputs<T>& inputs,
               const EndStates<Wide<T>>& ends, const Backward<T>& scratch, T* d_zxbcdt) {
  using W = Wide<T>;
  const Mamba2Attributes& a = sizes.a;
  const int64_t runs = runs_of(a);
  const int64_t num_sums = sizes.sequences() * a.heads;
  const auto run_heads_of = [&](int64_t sequence, int64_t group, int64_t run,
                                const HeadScratch<W>& head_scratch) {
    const int64_t first = group * heads_per_group(a) + run * heads_per_group(a) / runs;
    const int64_t last = group * heads_per_group(a) + (run + 1) * heads_per_group(a) / runs;
    const auto of_head = [&](const W* states, int64_t head) {
      return states == nullptr ? nullptr
                               : states + (sequence * a.heads + head) * sizes.state_elems();
    };
    for (int64_t head = first; head < last; ++head) {
      const HeadSums<W> sums =
          run_head(HeadProblem<T>{.sizes = sizes,
                                  .inputs = inputs,
                                  .ends = {.initial = of_head(ends.initial, head),
                                           .d_final = of_head(ends.d_final, head)},
                                  .xbc = scratch.xbc,
                                  .dy = scratch.dy,
                                  .d_xbc = scratch.convolution.d_xbc,
                                  .d_bc = scratch.d_bc + run * sizes.rows * bc_elems(a),
                                  .d_zxbcdt = d_zxbcdt,
                                  .first_row = sequence * a.sequence,
                                  .head = head,
                                  .adds_bc = head > first},
                   head_scratch);
      W* const to = scratch.head_sums + sequence * a.heads + head;
      to[0] = sums.dt_bias;
      to[num_sums] = sums.a;
      to[2 * num_sums] = sums.skip;
    }
  };
  run_pieces(args.workers, sizes.sequences() * a.groups * runs, 1,
             [&](int worker, int64_t at, int64_t end) {
               ScratchCursor cursor(args.scratch.data() + scratch.shared_bytes +
                                    static_cast<size_t>(worker) * scratch.head_bytes);
               const HeadScratch<W> head_scratch(sizes, cursor);
               for (; at < end; ++at) {
                 run_heads_of(at / runs / a.groups, at / runs % a.groups, at % runs, head_scratch);
               }
             });
}

/// The columns of B and C of d_xbc: the sum over runs of heads.
template <class T>
void sum_runs(WorkerPool& workers, const Sizes& sizes, const Backward<T>& scratch) {
  const int64_t width = bc_elems(sizes.a);
  const int64_t runs = runs_of(sizes.a);
  run_pieces(workers, sizes.rows, row_grain(runs * width), [&](int, int64_t row, int64_t end) {
    for (; row < end; ++row) {
      Wide<T>* const to = scratch.convolution.d_xbc + row * sizes.a.convolved() + sizes.a.inner();
      std::copy_n(scratch.d_bc + row * width, width, to);
      for (int64_t run = 1; run < runs; ++run) {
        add_scaled(Wide<T>(1), scratch.d_bc + (run * sizes.rows + row) * width, width, to);
      }
    }
  });
}

/// Where the operands of an op begin: of mamba2_backward, or of mamba2_section_backward.
struct BackwardOperands {
  size_t y = 7;  ///< then rstd and dv
  size_t d_zxbcdt = 10;
  size_t d_weights = 11;
  bool is_section = false;  ///< also before, initial, d_final and d_before
};

constexpr BackwardOperands kOfSections{.y = 9, .d_zxbcdt = 13, .d_weights = 14, .is_section = true};

/// Sets the gradients of all weights to 0, those of other parts too.
template <class W>
void clear_weight_grads(const Sizes& sizes, size_t d_weights, const KernelArgs& args) {
  const Mamba2Attributes& a = sizes.a;
  const int64_t elems[] = {
      a.convolved() * sizes.taps, a.convolved(), a.heads, a.heads, a.heads, a.inner()};
  for (size_t i = 0; i < std::size(elems); ++i) {
    std::fill_n(args.data<W>(d_weights + i), a.weights.count * elems[i], W(0));
  }
}

template <class T>
void run_backward(const Sizes& sizes, bool accumulate, const BackwardOperands& at, int num_workers,
                  const KernelArgs& args) {
  using W = Wide<T>;
  if (!accumulate && sizes.a.weights.count > 1) {
    clear_weight_grads<W>(sizes, at.d_weights, args);
    accumulate = true;
  }
  const Inputs<T> inputs(args, sizes.a);
  const int64_t part = sizes.a.weights.index;
  const Backward<T> scratch(sizes, num_workers, args.scratch.data());
  T* const d_zxbcdt = args.data<T>(at.d_zxbcdt);
  const NormGrads<T> norm{.y = args.data<const T>(at.y),
                          .rstd = args.data<const W>(at.y + 1),
                          .dv = args.data<const T>(at.y + 2),
                          .d_zxbcdt = d_zxbcdt,
                          .dy = scratch.dy};
  norm_backward(args.workers, sizes, inputs, norm, accumulate, scratch.norm_partials,
                args.data<W>(at.d_weights + 5) + part * sizes.a.inner());
  scratch.convolution.taps.load(sizes, inputs);
  ConvRows<T> rows{.zxbcdt = inputs.zxbcdt};
  EndStates<W> ends;
  if (at.is_section) {
    rows.before = args.data<const T>(7);
    ends = {.initial = args.data<const W>(8), .d_final = args.data<const W>(12)};
  }
  convolve(args.workers, sizes, rows, scratch.convolution.taps, scratch.xbc);
  run_heads(args, sizes, inputs, ends, scratch, d_zxbcdt);
  for (size_t i = 0; i < 3; ++i) {
    add_partial_sums(
        args.workers,
        scratch.head_sums + static_cast<int64_t>(i) * sizes.sequences() * sizes.a.heads,
        sizes.sequences(), sizes.a.heads, accumulate,
        args.data<W>(at.d_weights + 2 + i) + part * sizes.a.heads);
  }
  sum_runs(args.workers, sizes, scratch);
  convolution_backward(
      args.workers, sizes, rows, scratch.convolution,
      ConvolutionResults<T>{.d_zxbcdt = d_zxbcdt,
                            .d_before = at.is_section ? args.data<T>(at.d_weights + 6) : nullptr,
                            .d_weight = args.data<W>(at.d_weights),
                            .d_bias = args.data<W>(at.d_weights + 1),
                            .accumulate = accumulate});
}

CpuKernel make_backward(const OpSpec& spec, const BackwardOperands& at, int num_workers) {
  const auto [core, accumulate] = attributes_of<Mamba2BackwardAttributes>(spec);
  const Sizes sizes(spec, core);
  const bool adds = accumulate;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    const Backward<T> scratch(sizes, num_workers, nullptr);
    return {
        .run = [sizes, adds, at, num_workers](
                   const KernelArgs& args) { run_backward<T>(sizes, adds, at, num_workers, args); },
        .scratch_bytes =
            scratch.shared_bytes + static_cast<size_t>(num_workers) * scratch.head_bytes};
  });
}

}  // namespace

CpuKernel make_mamba2_backward(const OpSpec& spec, int num_workers) {
  return make_backward(spec, {}, num_workers);
}

CpuKernel make_mamba2_section_backward(const OpSpec& spec, int num_workers) {
  return make_backward(spec, kOfSections, num_workers);
}

}  // namespace braid
