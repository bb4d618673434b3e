#include "train/reference.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/checksum.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "runtime/progress_bar.h"

namespace braid {
namespace {

constexpr std::string_view kFormat = "braid reference 1";
constexpr int64_t kMaxFileBytes = int64_t{1} << 34;

/// The lines in front of the numbers.
std::string header_of(std::string_view key, std::span<const float> values) {
  return fmt::format("{}\n{}\n{} {}\n", kFormat, key, values.size(), reference_checksum(values));
}

/// The same samples, and the first ones again until they fill whole steps.
class WholeSteps final : public SampleSource {
 public:
  WholeSteps(const SampleSource& samples, int64_t samples_per_step)
      : samples_(samples),
        num_samples_((samples.num_samples() + samples_per_step - 1) / samples_per_step *
                     samples_per_step) {}

  int64_t sequence_tokens() const override { return samples_.sequence_tokens(); }
  int64_t num_samples() const override { return num_samples_; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override {
    samples_.read(sample % samples_.num_samples(), tokens, labels);
  }

 private:
  const SampleSource& samples_;
  int64_t num_samples_;
};

/// What the first process has, in all of them.
std::optional<std::vector<float>> kept_values(ProcessGroup& processes,
                                              const ReferenceOptions& options) {
  std::string bytes;
  if (processes.leads()) {
    if (const auto kept = read_reference(options.path, options.key)) {
      bytes.assign(reinterpret_cast<const char*>(kept->data()), kept->size() * sizeof(float));
    }
  }
  bytes = processes.broadcast("reference", std::move(bytes));
  if (bytes.empty()) {
    return std::nullopt;
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

/// Throws DataError unless the values are those of the run that wrote the checkpoint.
void check_recorded(const std::optional<std::vector<float>>& kept, std::string_view recorded,
                    const ReferenceOptions& options) {
  if (!kept) {
    throw_data_error(
        "'{}': the log-probabilities of the pairs of '{}' before the first step, which the "
        "checkpoint's run kept there, are missing, damaged or of other pairs; put the file back, "
        "or "
        "set checkpoint.resume = \"none\"",
        options.path, options.source);
  }
  if (const std::string checksum = reference_checksum(*kept); checksum != recorded) {
    throw_data_error(
        "'{}': its log-probabilities of the pairs of '{}' have checksum {}, and the checkpoint is "
        "of "
        "a run that began with {}; put the former file back, or set checkpoint.resume = \"none\"",
        options.path, options.source, checksum, recorded);
  }
}

bool begins_with(std::span<const float> values, std::span<const float> first) {
  const size_t size = std::min(values.size(), first.size());
  return std::memcmp(values.data(), first.data(), size * sizeof(float)) == 0;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Forwards over all samples, or over the first batch if `kept` begins as it does.
class ReferencePass {
 public:
  ReferencePass(Engine& engine, const SampleSource& answers, const ReferenceOptions& options)
      : engine_(engine),
        samples_(answers, options.shape.samples_per_step()),
        num_answers_(static_cast<size_t>(answers.num_samples())),
        loader_(samples_, {.shape = options.shape}) {
    if (options.terminal) {
      bar_.emplace(ProgressBarOptions{options.terminal, terminal_columns, now_ns});
    }
  }

  /// Whether they are values of these weights.
  bool confirms(std::span<const float> kept) {
    add_batch();
    return kept.size() == num_answers_ && begins_with(kept, values_);
  }

  std::vector<float> finish() {
    while (values_.size() < num_answers_) {
      add_batch();
    }
    if (bar_) {
      bar_->erase();
    }
    values_.resize(num_answers_);
    return std::move(values_);
  }

 private:
  void add_batch() {
    const std::optional<StepBatch> batch = loader_.next();
    check(batch.has_value(), "the answers end after {} of {}", values_.size(), num_answers_);
    const std::vector<float> found = engine_.log_probabilities(*batch);
    values_.insert(values_.end(), found.begin(), found.end());
    ++num_done_;
    if (bar_) {
      bar_->update({.step = num_done_, .num_steps = loader_.num_steps()});
    }
  }

  Engine& engine_;
  WholeSteps samples_;
  size_t num_answers_;
  BatchLoader loader_;
  std::optional<ProgressBar> bar_;
  std::vector<float> values_;
  int64_t num_done_ = 0;
};

}  // namespace

std::string reference_checksum(std::span<const float> values) {
  return checksum_of(std::as_bytes(values));
}

std::optional<std::vector<float>> read_reference(const std::string& path, std::string_view key) {
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  const std::string bytes = read_text_file(path, kMaxFileBytes);
  const size_t count_line = kFormat.size() + 1 + key.size() + 1;
  const size_t end = bytes.size() < count_line ? std::string::npos : bytes.find('\n', count_line);
  if (end == std::string::npos || (bytes.size() - end - 1) % sizeof(float) != 0) {
    return std::nullopt;
  }
  std::vector<float> values((bytes.size() - end - 1) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + end + 1, values.size() * sizeof(float));
  return bytes.compare(0, end + 1, header_of(key, values)) == 0 ? std::optional(std::move(values))
                                                                : std::nullopt;
}

void write_reference(const std::string& path, std::string_view key, std::span<const float> values) {
  check(key.find('\n') == std::string_view::npos, "a key of two lines");
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) {
    throw_data_error("cannot make the folder of '{}': {}", path, error.message());
  }
  std::string bytes = header_of(key, values);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  write_file_atomically(path, bytes);
}

std::vector<float> reference_log_probabilities(Engine& engine, const SampleSource& answers,
                                               ProcessGroup& processes,
                                               const ReferenceOptions& options) {
  std::optional<std::vector<float>> kept = kept_values(processes, options);
  const std::string recorded =
      processes.broadcast("recorded reference", options.recorded.value_or(""));
  if (!recorded.empty()) {
    check_recorded(kept, recorded, options);
    return std::move(*kept);
  }
  ReferencePass pass(engine, answers, options);
  if (kept && pass.confirms(*kept)) {
    options.message(fmt::format("reference log-probabilities of {} answers of {} are those of {}",
                                format_count(answers.num_samples()), options.source, options.path));
    return std::move(*kept);
  }
  const int64_t begin_ns = now_ns();
  std::vector<float> values = pass.finish();
  if (processes.leads()) {
    write_reference(options.path, options.key, values);
  }
  processes.barrier("the reference is kept");
  options.message(fmt::format("reference log-probabilities of {} answers of {} in {}",
                              format_count(answers.num_samples()), options.source,
                              format_duration(static_cast<double>(now_ns() - begin_ns) * 1e-9)));
  return values;
}

}  // namespace braid
