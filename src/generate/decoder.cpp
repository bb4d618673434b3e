#include "generate/decoder.h"

#include <algorithm>
#include <utility>

#include "backends/executor.h"
#include "base/errors.h"
#include "model/mtp.h"
#include "parallel/step_program.h"
#include "plan/run_plan.h"

namespace braid {
namespace {

/// Rows of the larger programs, of all sequences together: more make products more efficient, and
/// take more memory for their logits.
constexpr int64_t kPromptRows[] = {32, 256};

std::vector<int64_t> program_rows(int64_t max_tokens, int64_t num_sequences) {
  std::vector<int64_t> rows = {1};
  for (const int64_t all : kPromptRows) {
    const int64_t each = std::min(max_tokens, all / num_sequences);
    if (each > rows.back()) {
      rows.push_back(each);
    }
  }
  return rows;
}

std::string prefix_of(int64_t rows) {
  return fmt::format("decode_{}", rows);
}

RankPlan plan_rows(const ModelSpec& model, const ParameterLayout& layout, int64_t max_tokens,
                   int64_t num_sequences, DType dtype) {
  std::vector<Program> programs;
  for (const int64_t rows : program_rows(max_tokens, num_sequences)) {
    programs.push_back(build_eval_program(model, layout, Mesh(MeshSizes{}), 0,
                                          {.microbatch = num_sequences,
                                           .sequence = rows,
                                           .dtype = dtype,
                                           .end = ForwardEnd::kLogits,
                                           .cache = TokenCache{.capacity = max_tokens},
                                           .prefix = prefix_of(rows)}));
  }
  return plan_programs(std::move(programs));
}

}  // namespace

Decoder::Decoder(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
                 int64_t num_sequences, const CausalModelOptions& options)
    // As for CausalModel, units of multi-token prediction come last.
    : model_(without_mtp(model)),
      max_tokens_(max_tokens),
      rows_(program_rows(max_tokens, num_sequences)),
      lengths_(static_cast<size_t>(num_sequences), 0),
      programs_(
          model_, state, max_tokens, options, [&](const ParameterLayout& layout, int64_t tokens) {
            return plan_rows(model_, layout, tokens, num_sequences, compute_dtype(options.device));
          }) {}

std::vector<std::vector<float>> Decoder::append(std::span<const std::vector<int32_t>> tokens) {
  check(tokens.size() == lengths_.size(), "tokens of {} sequences, not {}", tokens.size(),
        lengths_.size());
  std::vector<std::span<const int32_t>> left(tokens.begin(), tokens.end());
  for (size_t i = 0; i < left.size(); ++i) {
    check(lengths_[i] + std::ssize(left[i]) <= max_tokens_, "{} tokens after {}, at most {}",
          left[i].size(), lengths_[i], max_tokens_);
  }
  std::vector<std::vector<float>> logits(left.size());
  for (;;) {
    const auto longest = std::ssize(std::ranges::max(left, {}, [](auto it) { return it.size(); }));
    if (longest == 0) {
      return logits;
    }
    const auto fits = std::ranges::lower_bound(rows_, longest);
    const auto program =
        static_cast<size_t>((fits == rows_.end() ? std::prev(rows_.end()) : fits) - rows_.begin());
    const std::vector<int32_t> counts = run(program, left);
    for (size_t i = 0; i < left.size(); ++i) {
      lengths_[i] += counts[i];
      left[i] = left[i].subspan(static_cast<size_t>(counts[i]));
      if (counts[i] > 0 && left[i].empty()) {
        logits[i] = programs_.logits(prefix_of(rows_[program]) + ".logits",
                                     static_cast<int64_t>(i) * rows_[program] + counts[i] - 1, 1,
                                     lengths_[i]);
      }
    }
  }
}

std::vector<int32_t> Decoder::run(size_t program,
                                  std::span<const std::span<const int32_t>> tokens) {
  const auto rows = static_cast<size_t>(rows_[program]);
  std::vector<int32_t> ids(tokens.size() * rows, 0);
  std::vector<int32_t> starts(ids.size(), 0);
  std::vector<int32_t> begins;
  std::vector<int32_t> counts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t count = std::min(rows, tokens[i].size());
    std::copy_n(tokens[i].begin(), count, ids.begin() + static_cast<ptrdiff_t>(i * rows));
    begins.push_back(static_cast<int32_t>(lengths_[i]));
    counts.push_back(static_cast<int32_t>(count));
    for (size_t row = 0; row < rows; ++row) {  // padding has the last position
      const int64_t position = std::min(lengths_[i] + static_cast<int64_t>(row), max_tokens_ - 1);
      starts[i * rows + row] = static_cast<int32_t>(max_tokens_ - 1 - position);
    }
  }
  // Models without positions, or without blocks that mix tokens, have no such inputs.
  const auto write = [&](std::string_view name, const std::vector<int32_t>& values) {
    const std::string buffer = fmt::format("{}.{}", prefix_of(rows_[program]), name);
    if (programs_.has(buffer)) {
      programs_.executor().write(buffer, 0, std::as_bytes(std::span(values)));
    }
  };
  write("tokens", ids);
  write(kDocumentStarts, starts);
  write(kCacheBegins, begins);
  write(kCacheCounts, counts);
  programs_.executor().run(program);
  return counts;
}

}  // namespace braid
