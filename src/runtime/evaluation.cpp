#include "runtime/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "backends/run_ranks.h"
#include "base/errors.h"
#include "model/forward.h"
#include "ops/preference.h"
#include "plan/rank_programs.h"
#include "runtime/batch_inputs.h"

namespace braid {

PreferenceRecord preference_of(std::span<const float> figures) {
  std::array<double, kPreferenceFigures> sums{};
  for (size_t i = 0; i < figures.size(); ++i) {
    sums[i % sums.size()] += static_cast<double>(figures[i]);
  }
  return {.chosen_reward = sums[0],
          .rejected_reward = sums[1],
          .accuracy = sums[2],
          .chosen_logp = sums[3],
          .rejected_logp = sums[4]};
}

Evaluation::Evaluation(const RunPlan& plan, std::span<const size_t> ranks,
                       std::vector<Executor*> executors, ProcessGroup* processes)
    : plan_(plan), ranks_(ranks), executors_(std::move(executors)), processes_(processes) {}

bool Evaluation::has_buffer(size_t local, std::string_view name) const {
  return std::ranges::any_of(
      plan_of_rank(plan_, static_cast<int>(ranks_[local])).programs[kEvalProgram].buffers,
      [&](const Buffer& buffer) { return buffer.name == name; });
}

/// The rank's inputs of a microbatch, as far as its program has them.
void Evaluation::write_inputs(size_t local, const StepBatch& batch, int64_t microbatch) {
  const BatchInputs inputs(plan_.run, static_cast<int>(ranks_[local]), batch);
  const auto write = [&](std::string_view name, const auto& values) {
    const std::string buffer = fmt::format("eval.{}", name);
    if (has_buffer(local, buffer)) {
      const auto written = values();
      executors_[local]->write(buffer, 0, std::as_bytes(std::span(written)));
    }
  };
  write("tokens", [&] { return inputs.tokens(microbatch); });
  write(kDocumentStarts, [&] { return inputs.document_starts(microbatch); });
  write(kExchangedDocumentStarts, [&] { return inputs.exchanged_document_starts(microbatch); });
  write("labels", [&] { return inputs.labels(microbatch); });
  write("loss_scale", [&] { return std::array{loss_scale_of(batch)}; });
  write(kReferenceValue, [&] { return inputs.reference(microbatch); });
}

/// The forward of a microbatch.
void Evaluation::run(const StepBatch& batch, int64_t microbatch) {
  for (size_t local = 0; local < executors_.size(); ++local) {
    write_inputs(local, batch, microbatch);
  }
  run_ranks(executors_, kEvalProgram);
}

/// Reads what tensor ranks have in common from the first of them; zeros for those that have no
/// part.
void Evaluation::append_result(std::vector<float>& results, size_t local, std::string_view name,
                               int64_t elems) const {
  std::vector<float> values(static_cast<size_t>(elems), 0.0f);
  if (plan_.run.mesh.position(static_cast<int>(ranks_[local])).tensor == 0 &&
      has_buffer(local, name)) {
    executors_[local]->read(name, 0, std::as_writable_bytes(std::span(values)));
  }
  results.insert(results.end(), values.begin(), values.end());
}

EvaluationResult Evaluation::evaluate(const StepBatch& batch) {
  const bool pairs = plan_.run.preference.has_value();
  const size_t width = pairs ? 1 + kPreferenceFigures : 1;
  std::vector<float> own;  // [microbatches, ranks of this process, width]
  for (int64_t microbatch = 0; microbatch < plan_.run.num_microbatches; ++microbatch) {
    run(batch, microbatch);
    for (size_t local = 0; local < executors_.size(); ++local) {
      append_result(own, local, "eval.loss", 1);
      if (pairs) {
        append_result(own, local, fmt::format("eval.{}", kPreferenceValue), kPreferenceFigures);
      }
    }
  }
  const std::vector<float> all = results_of_ranks(own, width);
  EvaluationResult result;
  std::vector<float> figures;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % width == 0) {
      result.loss += all[i];
    } else {
      figures.push_back(all[i]);
    }
  }
  if (pairs) {
    result.preference = preference_of(figures);
  }
  return result;
}

/// Of `own` [microbatches, ranks of this process, width]: the same of all ranks, in the order of
/// ranks, independent of the distribution to processes.
std::vector<float> Evaluation::results_of_ranks(const std::vector<float>& own, size_t width) const {
  if (processes_ == nullptr) {
    return own;
  }
  const auto bytes = std::as_bytes(std::span(own));
  const std::vector<std::string> given = processes_->all_gather(
      "results", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  std::vector<float> all(given.size() * own.size());
  for (size_t process = 0; process < given.size(); ++process) {
    check(given[process].size() == bytes.size(), "{} bytes of results", given[process].size());
    for (size_t at = 0; at < own.size(); at += width) {  // one rank for each process
      std::memcpy(&all[at * given.size() + process * width],
                  given[process].data() + at * sizeof(float), width * sizeof(float));
    }
  }
  return all;
}

std::vector<float> Evaluation::log_probabilities(const StepBatch& batch) {
  const int64_t width = batch.shape().microbatch;
  std::vector<float> own;
  for (int64_t microbatch = 0; microbatch < plan_.run.num_microbatches; ++microbatch) {
    run(batch, microbatch);
    for (size_t local = 0; local < executors_.size(); ++local) {
      append_result(own, local, fmt::format("eval.{}", kSequenceLossesValue), width);
    }
  }
  const std::vector<float> all = results_of_ranks(own, static_cast<size_t>(width));
  const int num_ranks = plan_.run.mesh.num_ranks();
  std::vector<float> found(static_cast<size_t>(batch.shape().samples_per_step()), 0.0f);
  auto next = all.begin();
  for (int64_t microbatch = 0; microbatch < plan_.run.num_microbatches; ++microbatch) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int64_t first =
          first_sample_of(batch.shape(), 0, plan_.run.mesh.position(rank).data, microbatch);
      for (int64_t i = 0; i < width; ++i) {  // context ranks add up their tokens'
        found[static_cast<size_t>(first + i)] -= *next++;
      }
    }
  }
  return found;
}

}  // namespace braid
