#include "state/adapted_state.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint_path.h"
#include "config/changes.h"
#include "config/load.h"
#include "plan/model_setup.h"
#include "state/checkpointing.h"
#include "state/hugging_face_source.h"
#include "state/import_weights.h"
#include "state/initial_weights.h"
#include "state/unit_range.h"

namespace braid {
namespace {

/// Throws ConfigError if they are not the same model.
void check_same_model(const ModelSpec& base, const ModelSpec& model, const std::string& path) {
  RunConfig theirs;
  RunConfig ours;
  theirs.model = model_keys(base);
  ours.model = model_keys(model);
  std::vector<std::string> differences;
  for (const KeyChange& change : changed_keys(theirs, ours)) {
    differences.push_back(
        fmt::format("{} is {}, not {}", full_name(*change.field), change.before, change.after));
  }
  if (!differences.empty()) {
    throw_config_error("lora.base = {}: it has another model: {}; change section [model]",
                       quote(path), join(differences, ", "));
  }
}

template <class Row>
double row_length(const Row& row) {
  double squares = 0;
  for (const auto value : row) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares);
}

}  // namespace

BaseWeights::BaseWeights(const std::string& path, const ModelSpec& model, uint64_t seed)
    : model_(base_model(model)), layout_(make_parameter_layout(model_parameters(model_))) {
  if (path.empty()) {
    throw_config_error(
        "lora.base is not given; name the folder of the model to fine-tune, or set lora.base = "
        "\"{}\" for fresh weights",
        kInitialBase);
  }
  const std::optional<std::string> checkpoint = checkpoint_at(path);
  if (path == kInitialBase) {
    source_ = std::make_unique<InitialWeights>(layout_, model_, seed);
  } else if (checkpoint) {
    open_checkpoint(path, *checkpoint);
  } else if (std::filesystem::exists(path + "/config.json")) {
    open_hugging_face(path);
  } else {
    throw_config_error(
        "lora.base = {}: it is neither a Hugging Face folder (with config.json) nor a checkpoint "
        "or "
        "a folder of checkpoints",
        quote(path));
  }
}

void BaseWeights::open_checkpoint(const std::string& path, const std::string& checkpoint) {
  checkpoint_ = std::make_unique<LoadedCheckpoint>(checkpoint, is_weight);
  const RunConfig config = parse_config(checkpoint_->state().config, checkpoint + "/state.json");
  if (config.lora.rank > 0) {
    throw_config_error(
        "lora.base = {}: its checkpoint has adapters only; give the folder that `braid export` "
        "makes of it",
        quote(path));
  }
  check_same_model(checkpointed_model(*checkpoint_, config), model_, path);
  source_ = std::make_unique<CheckpointedState>(*checkpoint_, layout_, model_);
}

void BaseWeights::open_hugging_face(const std::string& path) {
  check_same_model(read_hf_config(path).model, model_, path);
  files_ = std::make_unique<HfTensorFolder>(path);
  source_ = std::make_unique<HuggingFaceSource>(*files_, layout_, model_);
}

AdaptedState::AdaptedState(const BaseWeights& base, const StateSource& adapters,
                           const ParameterLayout& layout)
    : base_(base), adapters_(adapters), layout_(layout) {
  for (const ParameterUnit& unit : layout.units) {
    const std::vector<ParameterUnit>& units = base.layout().units;
    const auto found = std::ranges::find(units, unit.name, &ParameterUnit::name);
    check(!unit.frozen || (found != units.end() && found->num_elems == unit.num_elems),
          "the base has no unit {} of {} elements", unit.name, unit.num_elems);
    base_units_.push_back(static_cast<size_t>(found - units.begin()));
  }
}

void AdaptedState::read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                        WorkerPool& workers) const {
  if (layout_.units[unit].frozen) {
    base_.source().read(part, base_units_[unit], begin, out, workers);
  } else {
    adapters_.read(part, unit, begin, out, workers);
  }
}

std::vector<float> read_weights(const StateSource& state, const ParameterLayout& layout,
                                const std::string& parameter, int64_t first, int64_t count,
                                WorkerPool& workers) {
  const ParameterSlot& slot = layout.slot(parameter);
  std::vector<float> values(static_cast<size_t>(count));
  state.read(StatePart::kWeights, slot.unit, slot.begin + first, values, workers);
  return values;
}

MergedWeights::MergedWeights(const StateSource& state, const ParameterLayout& layout,
                             const ModelSpec& model, const ParameterLayout& merged)
    : state_(state), layout_(layout), lora_(model.lora), merged_(merged) {}

void MergedWeights::read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                         WorkerPool& workers) const {
  check(part == StatePart::kWeights, "merged weights have no optimizer state");
  WorkerPool alone(1);  // `workers` share the rows of each weight
  fill_unit_range(merged_, unit, begin, out, alone,
                  [&](const Parameter& weight, int64_t first, std::span<float> values) {
                    const std::vector<AdaptedMatrix> matrices = adapted_matrices(lora_, weight);
                    if (!matrices.empty()) {
                      read_adapted(weight, matrices, first, values, workers);
                      return;
                    }
                    const std::vector<float> frozen = read_weights(
                        state_, layout_, weight.name, first, std::ssize(values), workers);
                    std::ranges::copy(frozen, values.begin());
                  });
}

/// Whole rows of a weight, from `first_row` on.
struct MergedWeights::Rows {
  int64_t first_row = 0;
  int64_t in = 0;
  std::vector<float> values;

  int64_t end_row() const { return first_row + std::ssize(values) / in; }
  std::span<float> row(int64_t row) {
    return std::span(values).subspan(static_cast<size_t>((row - first_row) * in),
                                     static_cast<size_t>(in));
  }
};

void MergedWeights::read_adapted(const Parameter& weight, std::span<const AdaptedMatrix> matrices,
                                 int64_t first, std::span<float> values,
                                 WorkerPool& workers) const {
  const int64_t in = weight.shape[1];
  const int64_t last = first + std::ssize(values);
  Rows rows{.first_row = first / in, .in = in};
  rows.values = read_weights(state_, layout_, weight.name, rows.first_row * in,
                             ((last + in - 1) / in - rows.first_row) * in, workers);
  for (const AdaptedMatrix& matrix : matrices) {
    adapt(matrix, rows, workers);
  }
  std::copy_n(rows.values.begin() + (first - rows.first_row * in), values.size(), values.begin());
}

void MergedWeights::adapt(const AdaptedMatrix& matrix, Rows& rows, WorkerPool& workers) const {
  const int64_t rank = lora_.rank;
  const std::vector<float> a =
      read_weights(state_, layout_, matrix.a, matrix.a_row * rows.in, rank * rows.in, workers);
  const std::vector<float> b =
      read_weights(state_, layout_, matrix.b, 0, matrix.num_rows * rank, workers);
  std::vector<float> changes;
  if (!matrix.magnitude.empty()) {
    const int64_t out = layout_.parameters[layout_.slot(matrix.magnitude).parameter].shape[0];
    changes = read_weights(state_, layout_, matrix.magnitude, 0, out, workers);
  }
  workers.run(matrix.num_rows, 1, [&](int, int64_t row, int64_t end_row) {
    std::vector<double> sums(static_cast<size_t>(rows.in));
    for (; row < end_row; ++row) {
      const int64_t at = matrix.first_row + row * matrix.row_stride;
      if (at < rows.first_row || at >= rows.end_row()) {
        continue;
      }
      const std::span<float> base = rows.row(at);
      std::copy(base.begin(), base.end(), sums.begin());
      for (int64_t r = 0; r < rank; ++r) {
        const double factor =
            lora_.scale() * static_cast<double>(b[static_cast<size_t>(row * rank + r)]);
        for (size_t c = 0; c < sums.size(); ++c) {
          sums[c] += factor * static_cast<double>(a[static_cast<size_t>(r * rows.in) + c]);
        }
      }
      const double length = row_length(sums);
      const double gain = changes.empty() || length == 0
                              ? 1.0
                              : (row_length(base) + changes[static_cast<size_t>(at)]) / length;
      std::ranges::transform(sums, base.begin(),
                             [&](double sum) { return static_cast<float>(gain * sum); });
    }
  });
}

std::vector<float> row_magnitudes(const StateSource& state, const ParameterLayout& layout,
                                  const Parameter& weight, const AdaptedMatrix& matrix,
                                  WorkerPool& workers) {
  constexpr int64_t kRowsAtOnce = 256;
  const int64_t in = weight.shape[1];
  const std::vector<float> changes =
      read_weights(state, layout, matrix.magnitude, 0, weight.shape[0], workers);
  std::vector<float> magnitudes;
  for (int64_t begin = 0; begin < matrix.num_rows; begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, matrix.num_rows - begin);
    const int64_t first = matrix.first_row + begin * matrix.row_stride;
    const int64_t num_rows = (count - 1) * matrix.row_stride + 1;
    const std::vector<float> rows =
        read_weights(state, layout, weight.name, first * in, num_rows * in, workers);
    for (int64_t row = 0; row < num_rows; row += matrix.row_stride) {
      const auto of_row =
          std::span(rows).subspan(static_cast<size_t>(row * in), static_cast<size_t>(in));
      magnitudes.push_back(static_cast<float>(
          row_length(of_row) + static_cast<double>(changes[static_cast<size_t>(first + row)])));
    }
  }
  return magnitudes;
}

}  // namespace braid
