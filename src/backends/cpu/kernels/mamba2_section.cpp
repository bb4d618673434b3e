// What sections of sequences do to states and to their gradients: a walk over the chunks of a
// section, one head at a time, that begins with 0. mamba2_section and its backward are those of
// mamba2 (mamba2.cpp, mamba2_backward.cpp).
#include "ops/mamba2_section.h"

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/mamba2_parts.h"
#include "backends/cpu/kernels/mamba2_row_grads.h"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace mamba;

/// Scratch of both ops; `dy` and `d_weights` are those of gradients.
template <class T>
struct Scratch {
  using W = Wide<T>;
  Taps<W> taps;
  W* xbc;        // [rows, convolved]
  W* dy;         // [rows, inner]
  W* d_weights;  // [workers, inner], not read
  size_t shared_bytes;
  size_t head_bytes;  // of one worker's ChunkSteps

  Scratch(const Sizes& sizes, bool of_grads, int num_workers, std::byte* base)
      : Scratch(sizes, of_grads ? num_workers : 0, of_grads ? sizes.rows : 0, ScratchCursor(base)) {
  }

 private:
  Scratch(const Sizes& sizes, int num_workers, int64_t dy_rows, ScratchCursor cursor)
      : taps(sizes, cursor),
        xbc(cursor.take<W>(sizes.rows * sizes.a.convolved())),
        dy(cursor.take<W>(dy_rows * sizes.a.inner())),
        d_weights(cursor.take<W>(num_workers * sizes.a.inner())),
        shared_bytes(cursor.bytes()) {
    ScratchCursor head(nullptr);
    ChunkSteps<W>(sizes, head);
    head_bytes = head.bytes();
  }
};

/// One head of one section.
template <class T>
struct HeadWalk {
  using W = Wide<T>;
  const Sizes& sizes;
  const Inputs<T>& inputs;
  const Scratch<T>& scratch;
  int64_t section;
  int64_t head;

  int64_t first_row(int64_t index) const {
    return section * sizes.a.sequence + index * sizes.chunk();
  }
  HeadChunk<W> chunk(int64_t index) const {
    return head_chunk(sizes, static_cast<const W*>(scratch.xbc), first_row(index),
                      sizes.chunk_rows(index), head);
  }
  void set(const ChunkSteps<W>& steps, int64_t index) const {
    const T* const raw =
        inputs.zxbcdt + first_row(index) * sizes.a.row_elems() + sizes.a.dt_begin() + head;
    steps.set(sizes, HeadWeights<W>(inputs, head), raw, sizes.chunk_rows(index));
  }
};

/// The state behind the section; returns the product of the decays.
template <class T, class W = Wide<T>>
W advance(const HeadWalk<T>& walk, const ChunkSteps<W>& steps, W* state) {
  W log_decay = 0;
  for (int64_t index = 0; index < walk.sizes.chunks(); ++index) {
    const HeadChunk<W> chunk = walk.chunk(index);
    walk.set(steps, index);
    advance_state(walk.sizes, chunk, steps, index > 0, state);
    log_decay += steps.l[chunk.rows - 1];
  }
  return std::exp(log_decay);
}

/// The gradient of the state in front of it; returns the same.
template <class T, class W = Wide<T>>
W retreat(const HeadWalk<T>& walk, const ChunkSteps<W>& steps, W* grad) {
  const Mamba2Attributes& a = walk.sizes.a;
  const int64_t last = walk.sizes.chunks() - 1;
  W log_decay = 0;
  for (int64_t index = last; index >= 0; --index) {
    const HeadChunk<W> chunk = walk.chunk(index);
    walk.set(steps, index);
    const W* const dy =
        walk.scratch.dy + walk.first_row(index) * a.inner() + walk.head * a.head_size;
    retreat_state(walk.sizes, chunk, {dy, index < last}, steps, grad);
    log_decay += steps.l[chunk.rows - 1];
  }
  return std::exp(log_decay);
}

/// Calls walk(head's walk, steps, its state) for all heads of all sections, and writes the decays
/// that it returns.
template <class T, class Walk>
void for_each_head(const KernelArgs& args, const Sizes& sizes, const Inputs<T>& inputs,
                   const Scratch<T>& scratch, Wide<T>* summaries, const Walk& walk) {
  using W = Wide<T>;
  const int64_t heads = sizes.a.heads;
  const int64_t size = sizes.state_elems();
  run_pieces(args.workers, sizes.sequences() * heads, 1, [&](int worker, int64_t at, int64_t end) {
    ScratchCursor cursor(args.scratch.data() + scratch.shared_bytes +
                         static_cast<size_t>(worker) * scratch.head_bytes);
    const ChunkSteps<W> steps(sizes, cursor);
    for (; at < end; ++at) {
      const int64_t head = at % heads;
      W* const row = summaries + at / heads * heads * (size + 1);
      row[heads * size + head] =
          walk(HeadWalk<T>{sizes, inputs, scratch, at / heads, head}, steps, row + head * size);
    }
  });
}

template <class T>
void convolve_rows(const KernelArgs& args, const Sizes& sizes, const Inputs<T>& inputs,
                   const Scratch<T>& scratch) {
  scratch.taps.load(sizes, inputs);
  convolve(args.workers, sizes,
           ConvRows<T>{.zxbcdt = inputs.zxbcdt, .before = args.data<const T>(7)}, scratch.taps,
           scratch.xbc);
}

template <class T>
void run_states(const Sizes& sizes, int num_workers, const KernelArgs& args) {
  const Inputs<T> inputs(args, sizes.a);
  const Scratch<T> scratch(sizes, false, num_workers, args.scratch.data());
  convolve_rows(args, sizes, inputs, scratch);
  for_each_head(args, sizes, inputs, scratch, args.data<Wide<T>>(8), advance<T>);
}

template <class T>
void run_state_grads(const Sizes& sizes, int num_workers, const KernelArgs& args) {
  using W = Wide<T>;
  const Inputs<T> inputs(args, sizes.a);
  const Scratch<T> scratch(sizes, true, num_workers, args.scratch.data());
  convolve_rows(args, sizes, inputs, scratch);
  const NormGrads<T> norm{.y = args.data<const T>(8),
                          .rstd = args.data<const W>(9),
                          .dv = args.data<const T>(10),
                          .dy = scratch.dy};
  const int64_t width = sizes.a.inner();
  run_pieces(args.workers, sizes.rows, row_grain(width), [&](int worker, int64_t row, int64_t end) {
    W* const d_weight = scratch.d_weights + worker * width;
    std::fill_n(d_weight, width, W(0));
    for (; row < end; ++row) {
      norm_row_backward(sizes.a, inputs, norm, row, d_weight);
    }
  });
  for_each_head(args, sizes, inputs, scratch, args.data<W>(11), retreat<T>);
}

/// Of mamba2_section_states, or of mamba2_section_state_grads.
CpuKernel make_summaries(const OpSpec& spec, bool of_grads, int num_workers) {
  const Sizes sizes(spec, attributes_of<Mamba2Attributes>(spec));
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    const Scratch<T> scratch(sizes, of_grads, num_workers, nullptr);
    return {.run =
                [sizes, of_grads, num_workers](const KernelArgs& args) {
                  if (of_grads) {
                    run_state_grads<T>(sizes, num_workers, args);
                  } else {
                    run_states<T>(sizes, num_workers, args);
                  }
                },
            .scratch_bytes =
                scratch.shared_bytes + static_cast<size_t>(num_workers) * scratch.head_bytes};
  });
}

/// Calls visit(elements of a row of last inputs, the same row of zxbcdt).
template <class T, class U, class Visit>
void for_each_last_row(const Mamba2InputsAttributes& a, const Shape& last_shape,
                       const Shape& rows_shape, T* last, U* rows, const Visit& visit) {
  for (int64_t i = 0; i < last_shape[0]; ++i) {
    const int64_t row = (i / a.rows + 1) * a.sequence - a.rows + i % a.rows;
    visit(last + i * last_shape[1], rows + row * rows_shape[1] + a.inner);
  }
}

}  // namespace

CpuKernel make_mamba2_section_states(const OpSpec& spec, int num_workers) {
  return make_summaries(spec, false, num_workers);
}

CpuKernel make_mamba2_section_state_grads(const OpSpec& spec, int num_workers) {
  return make_summaries(spec, true, num_workers);
}

CpuKernel make_mamba2_last_inputs(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<Mamba2InputsAttributes>(spec);
  const Shape rows = spec.operands[0].shape;
  const Shape last = spec.operands[1].shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [a, rows, last](const KernelArgs& args) {
      for_each_last_row(a, last, rows, args.data<T>(1), args.data<const T>(0),
                        [&](T* to, const T* from) { std::copy_n(from, last[1], to); });
    }};
  });
}

CpuKernel make_mamba2_add_inputs(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<Mamba2InputsAttributes>(spec);
  const Shape last = spec.operands[0].shape;
  const Shape rows = spec.operands[1].shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [a, rows, last](const KernelArgs& args) {
      for_each_last_row(
          a, last, rows, args.data<const T>(0), args.data<T>(1), [&](const T* addend, T* to) {
            for (int64_t c = 0; c < last[1]; ++c) {
              store(to, c, static_cast<Wide<T>>(to[c]) + static_cast<Wide<T>>(addend[c]));
            }
          });
    }};
  });
}

}  // namespace braid
