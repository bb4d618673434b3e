#include "ops/mamba2_section.h"

#include <numeric>

#include "support/mamba2_section_cases.h"

namespace braid {
namespace {

/// Sequences whose sections several ranks hold, computed by the ops that pass states.
class SectionRanks {
 public:
  /// `whole`: the case of one rank, which has run.
  SectionRanks(const Mamba2Case& c, const ContextSections& context, const KernelCase& whole)
      : whole_(c), context_(context), section_(c), forward_of_all_(whole) {
    section_.a.sequence /= context.count();
    section_.batches *= context.sections;
  }

  /// Forwards of all ranks.
  std::vector<KernelCase> forwards() {
    const auto before = neighbours(last_inputs(), false);
    std::vector<KernelCase> list;
    std::vector<std::vector<double>> states;
    for (int64_t rank = 0; rank < context_.ranks; ++rank) {
      KernelCase forward = case_of(rank).forward(DType::kF64);
      forward.set(0, rows_of(rank, forward_of_all_.values(0)));
      for (size_t i = 1; i < 7; ++i) {
        forward.set(i, forward_of_all_.values(i));
      }
      forward.set(7, before[static_cast<size_t>(rank)]);
      KernelCase own = case_of(rank).section_states(forward);
      own.run(2);
      states.push_back(own.values(8));
      list.push_back(std::move(forward));
    }
    const auto initial = carried(states, false);
    for (size_t rank = 0; rank < list.size(); ++rank) {
      list[rank].set(8, initial[rank]);
      list[rank].run(2);
    }
    return list;
  }

  /// Backwards of all ranks for the gradient of all rows of v; their d_zxbcdt has what other
  /// sections add.
  std::vector<KernelCase> backwards(const std::vector<KernelCase>& forwards,
                                    const std::vector<double>& dv) {
    std::vector<std::vector<double>> grads;
    for (int64_t rank = 0; rank < context_.ranks; ++rank) {
      KernelCase own = case_of(rank).state_grads(forwards[static_cast<size_t>(rank)]);
      own.set(10, rows_of(rank, dv));
      own.run(2);
      grads.push_back(own.values(11));
    }
    const auto d_final = carried(grads, true);
    std::vector<KernelCase> list;
    std::vector<std::vector<double>> d_before;
    for (size_t rank = 0; rank < forwards.size(); ++rank) {
      KernelCase backward = case_of(static_cast<int64_t>(rank)).backward(forwards[rank]);
      backward.set(11, rows_of(static_cast<int64_t>(rank), dv));
      backward.set(12, d_final[rank]);
      backward.run(2);
      d_before.push_back(backward.values(20));
      list.push_back(std::move(backward));
    }
    const auto d_last = neighbours(d_before, true);
    for (size_t rank = 0; rank < list.size(); ++rank) {
      KernelCase add({"mamba2_add_inputs",
                      to_attributes(inputs()),
                      {read(DType::kF64, last_shape()), read_write(DType::kF64, rows_shape())}});
      add.set(0, d_last[rank]);
      add.set(1, list[rank].values(13));
      add.run();
      list[rank].set(13, add.values(1));
    }
    return list;
  }

  /// The rank's rows of a matrix with the rows of all ranks.
  std::vector<double> rows_of(int64_t rank, const std::vector<double>& all) const {
    const int64_t elems = static_cast<int64_t>(all.size()) / whole_.batches / context_.count();
    std::vector<double> rows;
    for (int64_t sequence = 0; sequence < whole_.batches; ++sequence) {
      for (int64_t section = 0; section < context_.sections; ++section) {
        const int64_t at = sequence * context_.count() + context_.place(rank, section);
        rows.insert(rows.end(), all.begin() + at * elems, all.begin() + (at + 1) * elems);
      }
    }
    return rows;
  }

 private:
  Mamba2SectionCase case_of(int64_t rank) const {
    ContextSections context = context_;
    context.index = rank;
    return {section_, context};
  }
  Mamba2InputsAttributes inputs() const {
    return {
        .inner = section_.a.inner(), .sequence = section_.a.sequence, .rows = section_.taps - 1};
  }
  Shape last_shape() const { return case_of(0).before(); }
  Shape rows_shape() const { return section_.inputs()[0]; }

  std::vector<std::vector<double>> last_inputs() const {
    std::vector<std::vector<double>> list;
    for (int64_t rank = 0; rank < context_.ranks; ++rank) {
      KernelCase kernel({"mamba2_last_inputs",
                         to_attributes(inputs()),
                         {read(DType::kF64, rows_shape()), write(DType::kF64, last_shape())}});
      kernel.set(0, rows_of(rank, forward_of_all_.values(0)));
      kernel.run();
      list.push_back(kernel.values(1));
    }
    return list;
  }
  /// Runs the op on every rank with the values of all.
  template <class Attributes>
  std::vector<std::vector<double>> exchanged(const char* op, Attributes attributes,
                                             const std::vector<std::vector<double>>& values,
                                             const Shape& own, const Shape& result) const {
    std::vector<double> all;
    for (const std::vector<double>& part : values) {
      all.insert(all.end(), part.begin(), part.end());
    }
    std::vector<std::vector<double>> results;
    for (int64_t rank = 0; rank < context_.ranks; ++rank) {
      attributes.context = context_;
      attributes.context.index = rank;
      KernelCase kernel(
          {op,
           to_attributes(attributes),
           {read(DType::kF64, {context_.ranks * own[0], own[1]}), write(DType::kF64, result)}});
      kernel.set(0, all);
      kernel.run(2);
      results.push_back(kernel.values(1));
    }
    return results;
  }
  std::vector<std::vector<double>> neighbours(const std::vector<std::vector<double>>& values,
                                              bool later) const {
    return exchanged("neighbour_sections",
                     NeighbourSectionsAttributes{.rows = section_.taps - 1, .later = later}, values,
                     last_shape(), last_shape());
  }
  std::vector<std::vector<double>> carried(const std::vector<std::vector<double>>& values,
                                           bool later) const {
    return exchanged("carry_states",
                     CarryStatesAttributes{.heads = section_.a.heads, .later = later}, values,
                     case_of(0).summaries(), case_of(0).states());
  }

  Mamba2Case whole_;
  ContextSections context_;
  Mamba2Case section_;
  const KernelCase& forward_of_all_;
};

/// Sequences of 24 rows.
Mamba2Case case_of_ranks() {
  return {{.sequence = 24,
           .heads = 4,
           .head_size = 3,
           .groups = 2,
           .state = 5,
           .chunk = 5,
           .norm_groups = 2,
           .dt_min = 0.02},
          2,
          3};
}

/// Two sections per rank in zig-zag order, one and two where all ranks exchange heads, and both
/// where some do.
const ContextSections kContexts[] = {
    {.ranks = 2, .sections = 2},
    {.ranks = 3, .sections = 2},
    {.ranks = 4, .inner = 4, .sections = 1},
    {.ranks = 3, .inner = 3, .sections = 2},
    {.ranks = 4, .inner = 2, .sections = 1},
    {.ranks = 6, .inner = 3, .sections = 2},
};

std::string name_of(const ContextSections& context) {
  return fmt::format("{} ranks, inner {}, {} sections", context.ranks, context.inner,
                     context.sections);
}

// Of rows in front of a rank's, only states and K - 1 rows are passed.
TEST(Mamba2Section, OverRanksIsTheWholeSequence) {
  const Mamba2Case c = case_of_ranks();
  KernelCase whole = c.forward(DType::kF64);
  whole.run();
  KernelCase whole_backward = c.backward(whole);
  whole_backward.run();
  for (const ContextSections& context : kContexts) {
    SectionRanks ranks(c, context, whole);
    const std::vector<KernelCase> forwards = ranks.forwards();
    const std::vector<KernelCase> backwards = ranks.backwards(forwards, whole_backward.values(9));
    constexpr Tolerance kTolerance{.absolute = 1e-13, .relative = 1e-12};
    std::vector<std::vector<double>> sums(7);
    for (int64_t rank = 0; rank < context.ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      for (size_t i = 0; i < 3; ++i) {
        expect_close(forwards[at].values(9 + i), ranks.rows_of(rank, whole.values(7 + i)),
                     kTolerance, fmt::format("{}: result {}", name_of(context), i));
      }
      expect_close(backwards[at].values(13), ranks.rows_of(rank, whole_backward.values(10)),
                   kTolerance, fmt::format("{}: d_zxbcdt", name_of(context)));
      for (size_t i = 1; i < 7; ++i) {
        const std::vector<double> part = backwards[at].values(13 + i);
        sums[i].resize(part.size());
        std::transform(part.begin(), part.end(), sums[i].begin(), sums[i].begin(), std::plus<>());
      }
    }
    for (size_t i = 1; i < 7; ++i) {
      expect_close(sums[i], whole_backward.values(10 + i), {.absolute = 1e-12, .relative = 1e-12},
                   fmt::format("{}: gradient of weight {}", name_of(context), i));
    }
  }
}

/// What is behind all sections: decay times initial, plus what they add.
double states_times(const Mamba2SectionCase& c, const KernelCase& forward,
                    const std::vector<double>& d_final) {
  KernelCase own = c.section_states(forward);
  own.run();
  const std::vector<double> summaries = own.values(8);
  const std::vector<double> initial = forward.values(8);
  const int64_t size = c.of.a.head_size * c.of.a.state;
  double sum = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(initial.size()); ++i) {
    const int64_t section = i / c.states()[1];
    const int64_t column = i % c.states()[1];
    const auto row = section * c.summaries()[1];
    const double added = summaries[static_cast<size_t>(row + column)];
    const double decay = summaries[static_cast<size_t>(row + c.states()[1] + column / size)];
    const auto at = static_cast<size_t>(i);
    sum += (decay * initial[at] + added) * d_final[at];
  }
  return sum;
}

/// The gradient of `initial`.
std::vector<double> d_initial(const Mamba2SectionCase& c, const KernelCase& forward,
                              const KernelCase& backward) {
  KernelCase grads = c.state_grads(forward);
  grads.set(10, backward.values(11));
  grads.run();
  const std::vector<double> summaries = grads.values(11);
  const std::vector<double> d_final = backward.values(12);
  const int64_t size = c.of.a.head_size * c.of.a.state;
  std::vector<double> result;
  for (int64_t i = 0; i < static_cast<int64_t>(d_final.size()); ++i) {
    const int64_t row = i / c.states()[1] * c.summaries()[1];
    const int64_t column = i % c.states()[1];
    result.push_back(summaries[static_cast<size_t>(row + column)] +
                     summaries[static_cast<size_t>(row + c.states()[1] + column / size)] *
                         d_final[static_cast<size_t>(i)]);
  }
  return result;
}

TEST(Mamba2SectionBackward, AgreesWithDifferencesOfEveryInput) {
  for (const Mamba2SectionCase& c : awkward_mamba2_section_cases()) {
    KernelCase forward = c.forward(DType::kF64);
    forward.run();
    KernelCase backward = c.backward(forward);
    backward.run();
    const std::vector<double> dv = backward.values(11);
    const std::vector<double> d_final = backward.values(12);
    for (size_t operand = 0; operand < 9; ++operand) {
      const std::vector<double> at = forward.values(operand);
      const auto loss = [&](const std::vector<double>& values) {
        forward.set(operand, values);
        forward.run();
        return dot(forward.values(11), dv) + states_times(c, forward, d_final);
      };
      const std::vector<double> gradient = operand < 7    ? backward.values(13 + operand)
                                           : operand == 7 ? backward.values(20)
                                                          : d_initial(c, forward, backward);
      expect_gradient(loss, at, gradient,
                      fmt::format("{}: of input {}", c.name(DType::kF64), operand));
      forward.set(operand, at);
      forward.run();
    }
  }
}

TEST(Mamba2Section, OfFloatsIsLikeThatOfDoubles) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Mamba2SectionCase& c : awkward_mamba2_section_cases()) {
      KernelCase forward = c.forward(dtype);
      KernelCase exact_forward = c.forward(DType::kF64);
      for (size_t i = 0; i < 9; ++i) {
        exact_forward.set(i, forward.values(i));
      }
      forward.run(2);
      exact_forward.run();
      const Tolerance sums{.absolute = 1024 * rounding_error(wide(dtype))};
      expect_close(forward.values(9), exact_forward.values(9),
                   {.absolute = sums.absolute, .relative = 1.01 * rounding_error(dtype)},
                   c.name(dtype));
      KernelCase own = c.section_states(forward);
      KernelCase exact_own = c.section_states(exact_forward);
      own.run(2);
      exact_own.run();
      expect_close(own.values(8), exact_own.values(8), sums, c.name(dtype));
      KernelCase backward = c.backward(forward, true);
      KernelCase exact = c.backward(exact_forward, true);
      for (size_t i = 0; i < 20; ++i) {
        if (i != 13) {
          exact.set(i, backward.values(i));
        }
      }
      KernelCase grads = c.state_grads(forward);
      KernelCase exact_grads = c.state_grads(exact_forward);
      for (size_t i = 8; i < 11; ++i) {
        exact_grads.set(i, grads.values(i));
      }
      grads.run(2);
      exact_grads.run();
      expect_close(grads.values(11), exact_grads.values(11), sums, c.name(dtype));
      backward.run(2);
      exact.run();
      for (size_t i = 13; i < 21; ++i) {
        const double relative = i == 13 || i == 20 ? rounding_error(dtype) : 0;
        expect_close(backward.values(i), exact.values(i),
                     {.absolute = sums.absolute, .relative = 1.01 * relative},
                     fmt::format("{}: {}", c.name(dtype), i));
      }
    }
  }
}

// From states of zero and rows of zero, a section is a whole sequence, bit for bit.
TEST(Mamba2Section, FromZerosIsMamba2) {
  for (const DType dtype : kFloatDtypes) {
    const Mamba2Case c = case_of_ranks();
    const Mamba2SectionCase section{c};
    KernelCase whole = c.forward(dtype);
    KernelCase forward = section.forward(dtype);
    for (size_t i = 0; i < 7; ++i) {
      forward.set(i, whole.values(i));
    }
    forward.set_all(7, 0);
    forward.set_all(8, 0);
    whole.run();
    forward.run();
    for (size_t i = 7; i < 10; ++i) {
      EXPECT_TRUE(forward.bytes(i + 2) == whole.bytes(i)) << dtype_name(dtype) << " " << i;
    }
    KernelCase whole_backward = c.backward(whole);
    KernelCase backward = section.backward(forward);
    backward.set(11, whole_backward.values(9));
    backward.set_all(12, 0);
    whole_backward.run();
    backward.run();
    for (size_t i = 10; i < 17; ++i) {
      EXPECT_TRUE(backward.bytes(i + 3) == whole_backward.bytes(i))
          << dtype_name(dtype) << " " << i;
    }
  }
}

TEST(Mamba2Section, DoesNotDependOnTheNumberOfWorkers) {
  Mamba2SectionCase c{case_of_ranks()};
  c.of.a.sequence = 301;
  c.of.a.chunk = 64;
  expect_same_for_any_workers([&] { return c.forward(DType::kBF16); });
  KernelCase forward = c.forward(DType::kBF16);
  forward.run(2);
  expect_same_for_any_workers([&] { return c.section_states(forward); });
  expect_same_for_any_workers([&] { return c.state_grads(forward); });
  expect_same_for_any_workers([&] { return c.backward(forward); });
}

}  // namespace
}  // namespace braid
