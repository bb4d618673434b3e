#include "ops/context_sections.h"

#include <vector>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Where the sections of a sequence are gathered.
class GatheredSections {
 public:
  GatheredSections(const ContextSections& context, int64_t sequences)
      : context_(context),
        sequences_(sequences),
        ranks_(static_cast<size_t>(context.count())),
        sections_(ranks_.size()) {
    for (int64_t rank = 0; rank < context.ranks; ++rank) {
      for (int64_t section = 0; section < context.sections; ++section) {
        const auto place = static_cast<size_t>(context.place(rank, section));
        ranks_[place] = rank;
        sections_[place] = section;
      }
    }
  }

  /// The block of a sequence's section at this place.
  int64_t block(int64_t sequence, int64_t place) const {
    const auto at = static_cast<size_t>(place);
    return (ranks_[at] * sequences_ + sequence) * context_.sections + sections_[at];
  }

 private:
  ContextSections context_;
  int64_t sequences_;
  std::vector<int64_t> ranks_;
  std::vector<int64_t> sections_;
};

template <class T>
void copy_neighbours(const KernelArgs& args, const NeighbourSectionsAttributes& a,
                     const Shape& shape) {
  const T* const x = args.data<const T>(0);
  T* const y = args.data<T>(1);
  const int64_t elems = a.rows * shape[1];
  const int64_t count = shape[0] / a.rows;  // sections of this rank
  const GatheredSections gathered(a.context, count / a.context.sections);
  for (int64_t own = 0; own < count; ++own) {
    const int64_t place =
        a.context.place(a.context.index, own % a.context.sections) + (a.later ? 1 : -1);
    T* const to = y + own * elems;
    if (place >= 0 && place < a.context.count()) {
      std::copy_n(x + gathered.block(own / a.context.sections, place) * elems, elems, to);
    } else {
      std::fill_n(to, elems, T(0));
    }
  }
}

/// state = factor state + addend, section by section.
template <class T>
void carry_states(const KernelArgs& args, const CarryStatesAttributes& a, const Shape& shape) {
  const T* const x = args.data<const T>(0);
  T* const y = args.data<T>(1);
  const int64_t elems = shape[1] / a.heads;
  const int64_t row_elems = shape[1] + a.heads;
  const GatheredSections gathered(a.context, shape[0] / a.context.sections);
  run_pieces(args.workers, shape[0] * a.heads, row_grain(elems * a.context.count()),
             [&](int, int64_t at, int64_t end) {
               for (; at < end; ++at) {
                 const int64_t own = at / a.heads;
                 const int64_t head = at % a.heads;
                 const int64_t place = a.context.place(a.context.index, own % a.context.sections);
                 const int64_t steps = a.later ? a.context.count() - 1 - place : place;
                 T* const state = y + own * shape[1] + head * elems;
                 std::fill_n(state, elems, T(0));
                 for (int64_t step = 0; step < steps; ++step) {
                   const T* const row =
                       x + gathered.block(own / a.context.sections,
                                          a.later ? a.context.count() - 1 - step : step) *
                               row_elems;
                   const T factor = row[shape[1] + head];
                   const T* const addend = row + head * elems;
#pragma omp simd
                   for (int64_t i = 0; i < elems; ++i) {
                     state[i] = factor * state[i] + addend[i];
                   }
                 }
               }
             });
}

}  // namespace

CpuKernel make_neighbour_sections(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<NeighbourSectionsAttributes>(spec);
  const Shape shape = spec.operands[1].shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [a, shape](const KernelArgs& args) { copy_neighbours<T>(args, a, shape); }};
  });
}

CpuKernel make_carry_states(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<CarryStatesAttributes>(spec);
  const Shape shape = spec.operands[1].shape;
  if (spec.operands[0].dtype == DType::kF64) {
    return {.run = [a, shape](const KernelArgs& args) { carry_states<double>(args, a, shape); }};
  }
  return {.run = [a, shape](const KernelArgs& args) { carry_states<float>(args, a, shape); }};
}

}  // namespace braid
