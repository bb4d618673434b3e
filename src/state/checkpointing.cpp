#include "state/checkpointing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/finite_check.h"
#include "base/text.h"
#include "parallel/layer_matrices.h"
#include "plan/model_setup.h"
#include "state/piece_pipe.h"
#include "state/state_transfer.h"
#include "state/unit_range.h"

namespace braid {
namespace {

constexpr std::string_view kExpAvgSuffix = ".exp_avg";
constexpr std::string_view kExpAvgSqSuffix = ".exp_avg_sq";
constexpr std::string_view kEmaSuffix = ".ema";
constexpr int64_t kFirstVersionOfPairs = 3;      // of StoredState: gate and up rows alternate
constexpr int64_t kFirstVersionOfRopeTypes = 4;  // presets have scaled rotary frequencies

std::string stored_name(StatePart part, const std::string& parameter) {
  switch (part) {
    case StatePart::kWeights:
      return parameter;
    case StatePart::kExpAvg:
      return fmt::format("{}{}", parameter, kExpAvgSuffix);
    case StatePart::kExpAvgSq:
      return fmt::format("{}{}", parameter, kExpAvgSqSuffix);
    case StatePart::kEma:
      return fmt::format("{}{}", parameter, kEmaSuffix);
  }
  throw_internal_error("no such part of a state");
}

bool has_tensor(const LoadedCheckpoint& checkpoint, std::string_view suffix) {
  return std::ranges::any_of(checkpoint.index().tensors, [&](const StoredTensor& tensor) {
    return tensor.name.ends_with(suffix);
  });
}

/// Muon keeps no second moment of matrices.
bool may_lack(StatePart part, const Parameter& parameter) {
  return part == StatePart::kExpAvgSq && is_muon_matrix(parameter);
}

int64_t piece_elems(const ParameterLayout& layout) {
  int64_t largest = 1;
  for (const Parameter& parameter : layout.parameters) {
    largest = std::max(largest, parameter.shape.num_elems());
  }
  return std::min(largest, kStatePieceElems);
}

/// Throws DataError if one of these elements, of which the first is `first` of the tensor, is NaN
/// or infinite. `what` precedes the name of the tensor.
void check_finite(std::span<const float> values, std::string_view what, const std::string& tensor,
                  int64_t first) {
  const std::optional<int64_t> at = find_non_finite(
      reinterpret_cast<const std::byte*>(values.data()), std::ssize(values), DType::kF32);
  if (at) {
    throw_data_error("{} tensor {} has {} at element {}", what, quote(tensor),
                     std::isnan(values[static_cast<size_t>(*at)]) ? "NaN" : "infinity",
                     first + *at);
  }
}

/// Fills the blocks of a pipe with numbers, one block after the other.
class BlockFiller {
 public:
  explicit BlockFiller(PiecePipe& pipe) : pipe_(pipe) {}

  /// Space for at least one number and at most `wanted`.
  std::span<float> take(int64_t wanted) {
    if (rest_.empty()) {
      flush();
      const std::span<std::byte> block = pipe_.next();
      rest_ = {reinterpret_cast<float*>(block.data()), block.size() / sizeof(float)};
    }
    const auto taken = rest_.first(std::min(rest_.size(), static_cast<size_t>(wanted)));
    rest_ = rest_.subspan(taken.size());
    used_bytes_ += taken.size_bytes();
    return taken;
  }

  void flush() {
    if (used_bytes_ > 0) {
      pipe_.submit(used_bytes_);
      used_bytes_ = 0;
    }
  }

 private:
  PiecePipe& pipe_;
  std::span<float> rest_;
  size_t used_bytes_ = 0;  // in the block whose end is `rest_`
};

/// Writes the files of one shard from its source, through the same two blocks.
class ShardWriter {
 public:
  ShardWriter(const ParameterLayout& layout, const ModelSpec& model, const StateShard& shard,
              int64_t step, int64_t block_bytes)
      : layout_(layout),
        model_(model),
        shard_(shard),
        what_(
            fmt::format("no checkpoint of step {} is written, because it must be finite:", step)) {
    while (shard.source != nullptr && blocks_.size() < 2) {
      blocks_.push_back(shard.source->host_block(block_bytes));
    }
  }

  CheckpointShard streams() {
    return {.weights = stream([](StatePart part) { return part == StatePart::kWeights; }),
            .optimizer = stream([](StatePart part) { return part != StatePart::kWeights; })};
  }

 private:
  TensorStream stream(const std::function<bool(StatePart)>& belongs) {
    TensorStream result;
    std::vector<StatePiece> pieces;
    for (const StatePiece& piece : shard_.pieces) {
      if (belongs(piece.part)) {
        const Parameter& parameter = layout_.parameters[piece.parameter];
        pieces.push_back(piece);
        result.pieces.push_back({stored_name(piece.part, parameter.name), DType::kF32,
                                 stored_shape(parameter, model_), piece.range});
      }
    }
    if (shard_.source == nullptr) {
      return result;
    }
    result.send = [this, pieces = std::move(pieces)](const TensorStream::Write& write) {
      PiecePipe pipe(blocks_, write);
      BlockFiller filler(pipe);
      for (const StatePiece& piece : pieces) {
        send(piece, filler);
      }
      filler.flush();
      pipe.finish();
    };
    return result;
  }

  void send(const StatePiece& piece, BlockFiller& filler) {
    const ParameterSlot& slot = layout_.slots[piece.parameter];
    const int64_t pitch = row_elems(layout_.parameters[piece.parameter].shape);
    const std::string name = stored_name(piece.part, layout_.parameters[piece.parameter].name);
    for (int64_t run = 0; run < piece.range.num_runs; ++run) {
      const int64_t begin = slot.begin + piece.range.begin + run * pitch;
      for (int64_t done = 0; done < piece.range.run_elems;) {
        const std::span<float> values = filler.take(piece.range.run_elems - done);
        shard_.source->read(piece.part, slot.unit, begin + done, values, workers_);
        check_finite(values, what_, name, piece.range.begin + run * pitch + done);
        done += static_cast<int64_t>(values.size());
      }
    }
  }

  const ParameterLayout& layout_;
  const ModelSpec& model_;
  const StateShard& shard_;
  const std::string what_;  // of errors
  std::vector<HostBlock> blocks_;
  WorkerPool workers_{1};  // copy engines read from devices
};

}  // namespace

std::string save_model_state(const std::string& folder, const CheckpointState& progress,
                             const ParameterLayout& layout, const ModelSpec& model,
                             std::span<const StateShard> shards, const SaveOptions& options) {
  const auto num_shards = static_cast<int64_t>(shards.size());
  const auto block_elems = std::max<int64_t>(1, piece_elems(layout) / num_shards);
  std::vector<std::unique_ptr<ShardWriter>> writers;
  std::vector<CheckpointShard> streams;
  for (const StateShard& shard : shards) {
    writers.push_back(std::make_unique<ShardWriter>(
        layout, model, shard, progress.step, block_elems * static_cast<int64_t>(sizeof(float))));
    streams.push_back(writers.back()->streams());
  }
  return save_checkpoint(folder, progress, streams, options);
}

bool is_weight(std::string_view tensor) {
  return !tensor.ends_with(kExpAvgSuffix) && !tensor.ends_with(kExpAvgSqSuffix) &&
         !tensor.ends_with(kEmaSuffix);
}

bool is_weight_or_average(std::string_view tensor) {
  return is_weight(tensor) || tensor.ends_with(kEmaSuffix);
}

bool has_averages(const LoadedCheckpoint& checkpoint) {
  return has_tensor(checkpoint, kEmaSuffix);
}

ModelSpec checkpointed_model(const LoadedCheckpoint& checkpoint, const RunConfig& config) {
  ModelConfig keys = config.model;
  const StoredTensor* const embedding = checkpoint.find(kEmbeddingTable);
  if (embedding != nullptr && embedding->shape.rank() == 2) {
    keys.vocabulary = embedding->shape[0];
  }
  if (checkpoint.version() < kFirstVersionOfRopeTypes) {
    keys.rope_type = std::string(rope_type_name(RopeType::kDefault));
  }
  return with_adapters(resolve_model(keys, config.train.sequence, 0), config.lora);
}

int64_t checkpoint_host_bytes(const ParameterLayout& layout) {
  return 2 * piece_elems(layout) * static_cast<int64_t>(sizeof(float));
}

CheckpointedState::CheckpointedState(const LoadedCheckpoint& checkpoint,
                                     const ParameterLayout& layout, const ModelSpec& model,
                                     bool reads_moments)
    : checkpoint_(checkpoint),
      layout_(layout),
      has_exp_avg_(reads_moments && has_tensor(checkpoint, kExpAvgSuffix)),
      has_exp_avg_sq_(reads_moments && has_tensor(checkpoint, kExpAvgSqSuffix)),
      has_ema_(has_averages(checkpoint)),
      has_gates_in_front_(checkpoint.version() < kFirstVersionOfPairs),
      what_(fmt::format("'{}':", checkpoint.path())) {
  std::set<std::string> known;
  for (const StatePart part : kStateParts) {
    for (const Parameter& parameter : layout.parameters) {
      if (parameter.frozen) {
        continue;
      }
      const std::string name = stored_name(part, parameter.name);
      if (!is_zero(part) && !may_lack(part, parameter)) {
        checkpoint.tensor(name, DType::kF32, stored_shape(parameter, model));
      }
      known.insert(name);
    }
  }
  for (const StoredTensor& tensor : checkpoint.index().tensors) {
    if (!known.contains(tensor.name)) {
      throw_data_error("'{}' has the tensor {}, which the model does not have", checkpoint.path(),
                       quote(tensor.name));
    }
  }
}

void CheckpointedState::read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                             WorkerPool& workers) const {
  if (is_zero(part)) {
    std::fill(out.begin(), out.end(), 0.0f);
    return;
  }
  fill_unit_range(layout_, unit, begin, out, workers,
                  [&](const Parameter& parameter, int64_t first, std::span<float> values) {
                    const std::string name = stored_name(part, parameter.name);
                    const StoredTensor* const stored = checkpoint_.find(name);
                    if (stored == nullptr) {
                      std::fill(values.begin(), values.end(), 0.0f);
                      return;
                    }
                    fill(*stored, parameter, first, values);
                    check_finite(values, what_, name, first);
                  });
}

/// Reads elements [first, first + values.size()) of a parameter.
void CheckpointedState::fill(const StoredTensor& stored, const Parameter& parameter, int64_t first,
                             std::span<float> values) const {
  if (parameter.gate_up_rows && has_gates_in_front_) {
    fill_in_turns(stored, first, values);
    return;
  }
  const int64_t there = std::max<int64_t>(0, stored.shape.num_elems() - first);
  const size_t count = std::min(values.size(), static_cast<size_t>(there));
  if (count > 0) {  // 0 in padding rows
    checkpoint_.read(stored, first, std::as_writable_bytes(values.first(count)));
  }
}

/// The same for alternating rows: rows 0, 2, 4, ... are the first half of the file's rows, the
/// others the second half.
void CheckpointedState::fill_in_turns(const StoredTensor& stored, int64_t first,
                                      std::span<float> values) const {
  const int64_t half_elems = stored.shape.num_elems() / 2;
  const int64_t columns = row_elems(stored.shape);
  const auto last = first + static_cast<int64_t>(values.size());
  for (const int64_t half : {0, 1}) {
    const PieceRange rows{
        .begin = half * columns, .num_runs = stored.shape[0] / 2, .run_elems = columns};
    for_each_overlap(
        rows, 2 * columns, first, last, [&](int64_t of_half, int64_t ours, int64_t count) {
          const auto target =
              values.subspan(static_cast<size_t>(ours - first), static_cast<size_t>(count));
          checkpoint_.read(stored, half * half_elems + of_half, std::as_writable_bytes(target));
        });
  }
}

}  // namespace braid
