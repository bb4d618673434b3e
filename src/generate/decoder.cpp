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

/// The model, or one for sequences with each of its rotary frequencies.
std::vector<ModelSpec> models_of(const ModelSpec& model, int64_t max_tokens) {
  const int64_t end = model.rope_scaling.first_length_end();
  if (end == 0 || max_tokens <= end) {
    return {model};
  }
  std::vector<ModelSpec> models(2, model);
  models[0].rope_scaling = model.rope_scaling.for_tokens(end);
  models[1].rope_scaling = model.rope_scaling.for_tokens(end + 1);
  return models;
}

std::string program_prefix(size_t model, int64_t rows) {
  return fmt::format("decode{}_{}", model == 0 ? "" : "_long", rows);
}

RankPlan plan_rows(const std::vector<ModelSpec>& models, const ParameterLayout& layout,
                   int64_t max_tokens, int64_t num_sequences, DType dtype) {
  std::vector<Program> programs;
  for (size_t model = 0; model < models.size(); ++model) {
    for (const int64_t rows : program_rows(max_tokens, num_sequences)) {
      programs.push_back(build_eval_program(models[model], layout, Mesh(MeshSizes{}), 0,
                                            {.microbatch = num_sequences,
                                             .sequence = rows,
                                             .dtype = dtype,
                                             .end = ForwardEnd::kLogits,
                                             .cache = TokenCache{.capacity = max_tokens},
                                             .prefix = program_prefix(model, rows)}));
    }
  }
  return plan_programs(std::move(programs));
}

}  // namespace

Decoder::Decoder(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
                 int64_t num_sequences, const CausalModelOptions& options)
    // As for CausalModel, units of multi-token prediction come last.
    : model_(without_mtp(model)),
      models_(models_of(model_, max_tokens)),
      max_tokens_(max_tokens),
      rows_(program_rows(max_tokens, num_sequences)),
      lengths_(static_cast<size_t>(num_sequences), 0),
      history_(lengths_.size()),
      programs_(model_, state, max_tokens, options,
                [&](const ParameterLayout& layout, int64_t tokens) {
                  return plan_rows(models_of(model_, tokens), layout, tokens, num_sequences,
                                   compute_dtype(options.device));
                }) {}

std::string Decoder::prefix_of(size_t program) const {
  return program_prefix(program / rows_.size(), rows_[program % rows_.size()]);
}

size_t Decoder::program_for(size_t model, int64_t rows) const {
  const auto fits = std::ranges::lower_bound(rows_, rows);
  const auto found = fits == rows_.end() ? std::prev(rows_.end()) : fits;
  return model * rows_.size() + static_cast<size_t>(found - rows_.begin());
}

size_t Decoder::model_of(int64_t tokens) const {
  return models_.size() > 1 && tokens > model_.rope_scaling.first_length_end() ? 1 : 0;
}

std::vector<std::vector<float>> Decoder::append(std::span<const std::vector<int32_t>> tokens) {
  check(tokens.size() == lengths_.size(), "tokens of {} sequences, not {}", tokens.size(),
        lengths_.size());
  Tokens left(tokens.begin(), tokens.end());
  std::vector<size_t> models(left.size());
  for (size_t i = 0; i < left.size(); ++i) {
    const int64_t length = lengths_[i] + std::ssize(left[i]);
    check(length <= max_tokens_, "{} tokens after {}, at most {}", left[i].size(), lengths_[i],
          max_tokens_);
    models[i] = model_of(length);
    if (models_.size() > 1) {
      history_[i].insert(history_[i].end(), left[i].begin(), left[i].end());
    }
    if (models[i] != model_of(lengths_[i])) {  // its keys have the other frequencies
      lengths_[i] = 0;
      left[i] = history_[i];
    }
  }
  std::vector<std::vector<float>> logits(left.size());
  for (size_t model = 0; model < models_.size(); ++model) {
    Tokens own = left;
    for (size_t i = 0; i < own.size(); ++i) {
      own[i] = models[i] == model ? own[i] : std::span<const int32_t>();
    }
    advance(model, std::move(own), logits);
  }
  return logits;
}

void Decoder::advance(size_t model, Tokens left, std::vector<std::vector<float>>& logits) {
  for (;;) {
    const auto longest = std::ssize(std::ranges::max(left, {}, [](auto it) { return it.size(); }));
    if (longest == 0) {
      return;
    }
    const size_t program = program_for(model, longest);
    const int64_t rows = rows_[program % rows_.size()];
    const std::vector<int32_t> counts = run(program, left);
    for (size_t i = 0; i < left.size(); ++i) {
      lengths_[i] += counts[i];
      left[i] = left[i].subspan(static_cast<size_t>(counts[i]));
      if (counts[i] > 0 && left[i].empty()) {
        logits[i] =
            programs_.logits(prefix_of(program) + ".logits",
                             static_cast<int64_t>(i) * rows + counts[i] - 1, 1, lengths_[i]);
      }
    }
  }
}

std::vector<int32_t> Decoder::run(size_t program, const Tokens& tokens) {
  const auto rows = static_cast<size_t>(rows_[program % rows_.size()]);
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
    const std::string buffer = fmt::format("{}.{}", prefix_of(program), name);
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
