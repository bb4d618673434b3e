#include "passes/analysis/work_coverage.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>

#include "ops/op.h"
#include "passes/analysis/mixed_hash.h"
#include "passes/tensor/split_task.h"

namespace braid {
namespace {

using Border = WorkCoverage::Border;

uint64_t hash_of(const std::string& text) {
  return std::hash<std::string>()(text);
}

/// Hash of the label fields by which a task is counted; the op is added separately.
uint64_t hash_of(const Program& program, const Label& label) {
  uint64_t hash = static_cast<uint64_t>(label.phase);
  for (const int32_t part : {label.microbatch, label.virtual_stage, label.layer}) {
    hash = mixed_hash(hash, static_cast<uint64_t>(part));
  }
  return label.site.valid() ? mixed_hash(hash, hash_of(program.sites[label.site.index()])) : hash;
}

auto place_of(const Border& border) {
  return std::tuple(border.kind, border.buffer, border.element);
}

/// Merges borders at the same element and drops those without a change.
std::vector<Border> merged(std::vector<Border> borders) {
  std::ranges::sort(borders, {}, place_of);
  std::vector<Border> result;
  for (const Border& border : borders) {
    if (!result.empty() && place_of(result.back()) == place_of(border)) {
      result.back().change += border.change;
    } else {
      result.push_back(border);
    }
  }
  std::erase_if(result, [](const Border& border) { return border.change == 0; });
  return result;
}

/// Reduces merged borders to those where coverage begins or ends.
std::vector<Border> covered_at_all(const std::vector<Border>& borders) {
  std::vector<Border> result;
  int64_t count = 0;  // returns to 0 at the last border of a buffer
  for (Border border : borders) {
    const bool was_covered = count > 0;
    count += border.change;
    if (was_covered != (count > 0)) {
      border.change = count > 0 ? 1 : -1;
      result.push_back(border);
    }
  }
  return result;
}

}  // namespace

std::set<std::string> WorkCoverage::ops_in(const Program& program) {
  std::set<std::string> ops;
  for (const OpSpec& spec : program.specs.all()) {
    const std::optional<SplitRule> rule = split_rule(spec);
    if (rule && !rule->keeps_bits && find_op(spec.op).family != OpFamily::kAttention) {
      ops.insert(spec.op);
    }
  }
  return ops;
}

WorkCoverage::WorkCoverage(const Program& program, const std::set<std::string>& ops) {
  std::vector<std::optional<uint64_t>> hash_of_spec;
  for (const OpSpec& spec : program.specs.all()) {
    hash_of_spec.push_back(ops.contains(spec.op) ? std::optional(hash_of(spec.op)) : std::nullopt);
  }
  std::vector<uint64_t> hash_of_buffer;
  for (const Buffer& buffer : program.buffers) {
    hash_of_buffer.push_back(hash_of(buffer.name));
  }
  std::vector<Border> written;
  std::vector<Border> read;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    if (!hash_of_spec[task.spec.index()]) {
      continue;
    }
    const uint64_t kind =
        mixed_hash(*hash_of_spec[task.spec.index()], hash_of(program, task.label));
    const auto ranges = program.operands_of(task);
    const auto& specs = program.spec(task).operands;
    for (size_t k = 0; k < ranges.size(); ++k) {
      const BufferRange& range = ranges[k];
      const bool is_written = writes(specs[k].access);
      const Buffer& buffer = program.buffers[range.buffer.index()];
      if (range.begin == range.end || (!is_written && buffer.lifetime != Lifetime::kPersistent)) {
        continue;
      }
      std::vector<Border>& borders = is_written ? written : read;
      Border border{.kind = mixed_hash(kind, is_written ? 1 : 0),
                    .buffer = hash_of_buffer[range.buffer.index()],
                    .element = range.begin,
                    .change = 1,
                    .task = TaskId(i)};
      borders.push_back(border);
      border.element = range.end;
      border.change = -1;
      borders.push_back(border);
    }
  }
  borders_ = merged(std::move(written));
  const std::vector<Border> reads = covered_at_all(merged(std::move(read)));
  borders_.insert(borders_.end(), reads.begin(), reads.end());
}

std::vector<Violation> compare_coverage(const WorkCoverage& before, const Program& after,
                                        const WorkCoverage& coverage_after) {
  const auto [old_border, border] =
      std::ranges::mismatch(before.borders(), coverage_after.borders(),
                            [](const Border& a, const Border& b) { return a.is_same(b); });
  const bool is_more = border != coverage_after.borders().end();
  if (!is_more && old_border == before.borders().end()) {
    return {};
  }
  const std::string where = is_more ? fmt::format("task {} ({})", border->task.index(),
                                                  describe_task(after, border->task))
                                    : "the last of them";
  return {
      {fmt::format("coverage: the products of {} write other elements than before, or read "
                   "other weights; see {}",
                   after.name, where)}};
}

}  // namespace braid
