#include "state/checkpointing.h"
#include "model/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <random>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "checkpoint/state_file.h"
#include "state/averaged_weights.h"
#include "state/initial_weights.h"
#include "state/state_transfer.h"
#include "support/model_state.h"
#include "support/small_model.h"
#include "support/tensor_bytes.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// Random numbers in every parameter and moment; 0 in padding rows and between parameters.
ModelState random_state(const ParameterLayout& layout, const ModelSpec& model, uint32_t seed) {
  std::mt19937 random(seed);
  ModelState state = empty_state(layout);
  for (const StatePart part : kStateParts) {
    for (const Parameter& parameter : layout.parameters) {
      std::span<float> values = elements_of(layout, parameter.name, state.part(part));
      if (parameter.vocabulary_rows) {
        values = values.first(static_cast<size_t>(model.vocabulary * parameter.shape[1]));
      }
      std::generate(values.begin(), values.end(),
                    [&] { return static_cast<float>(random()) - 2e9f; });
    }
  }
  return state;
}

class Checkpointing : public ::testing::Test {
 protected:
  std::string save(const StateSource& state) {
    return save_model_state(folder_ / "c", {.step = 3, .model = "small"}, layout_, model_,
                            std::array{whole_shard(layout_, model_, state)}, {.keep = 0});
  }

  const ModelSpec model_ = small_gpt2();
  const ParameterLayout layout_ = make_parameter_layout(model_parameters(model_));
  TempFolder folder_;
};

TEST_F(Checkpointing, ReadsWhatItWroteInPiecesOfAnySize) {
  const ModelState state = random_state(layout_, model_, 5);
  const LoadedCheckpoint checkpoint(save(state));
  const CheckpointedState loaded(checkpoint, layout_, model_);
  for (const int64_t piece_elems : {int64_t{1} << 20, int64_t{999}, int64_t{61}}) {
    const ModelState read = whole_state(layout_, loaded, piece_elems);
    EXPECT_EQ(read.weights, state.weights);
    EXPECT_EQ(read.exp_avg, state.exp_avg);
    EXPECT_EQ(read.exp_avg_sq, state.exp_avg_sq);
    EXPECT_EQ(read.ema, state.ema);
  }
}

// What earlier versions wrote, and what tools of others expect.
TEST_F(Checkpointing, FilesHoldTheParametersInForwardOrderWithoutPadding) {
  ModelState state = random_state(layout_, model_, 6);
  const std::string path = save(state);
  const SafetensorsFile weights(path + "/model.safetensors");
  const SafetensorsFile optimizer(path + "/optimizer.safetensors");
  ASSERT_EQ(weights.tensors().size(), layout_.parameters.size());
  ASSERT_EQ(optimizer.tensors().size(), 3 * layout_.parameters.size());
  for (size_t i = 0; i < layout_.parameters.size(); ++i) {
    const Parameter& parameter = layout_.parameters[i];
    const TensorEntry& entry = weights.tensors()[i];
    EXPECT_EQ(entry.name, parameter.name);
    EXPECT_EQ(optimizer.tensors()[i].name, parameter.name + ".exp_avg");
    EXPECT_EQ(optimizer.tensors()[layout_.parameters.size() + i].name,
              parameter.name + ".exp_avg_sq");
    EXPECT_EQ(optimizer.tensors()[2 * layout_.parameters.size() + i].name, parameter.name + ".ema");
    const std::span<float> values = elements_of(layout_, parameter.name, state.weights);
    const auto bytes = tensor_bytes(weights, entry);
    EXPECT_EQ(entry.shape[0], parameter.vocabulary_rows ? 50 : parameter.shape[0]);
    ASSERT_LE(bytes.size(), values.size_bytes());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), std::as_bytes(values).begin()))
        << parameter.name;
  }
}

TEST_F(Checkpointing, ANonFiniteStateIsNotWritten) {
  const std::string good = save(random_state(layout_, model_, 5));
  for (const StatePart part : kStateParts) {
    ModelState state = random_state(layout_, model_, 6);
    const std::string name = layout_.parameters[3].name;
    elements_of(layout_, name, state.part(part))[7] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(message_of<DataError>([&] { save(state); }),
              fmt::format("no checkpoint of step 3 is written, because it must be finite: tensor "
                          "\"{}{}\" has infinity at element 7",
                          name,
                          part == StatePart::kWeights    ? ""
                          : part == StatePart::kExpAvg   ? ".exp_avg"
                          : part == StatePart::kExpAvgSq ? ".exp_avg_sq"
                                                         : ".ema"));
  }
  EXPECT_EQ(
      whole_state(layout_, CheckpointedState(LoadedCheckpoint(good), layout_, model_)).weights,
      random_state(layout_, model_, 5).weights);
  const std::filesystem::directory_iterator entries(folder_ / "c");
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);  // the good one, and its name
}

/// The weights of a state, as an earlier version wrote them: unchecked, and what else there is.
std::string save_unchecked(const std::string& folder, const ParameterLayout& layout,
                           const ModelSpec& model, ModelState& state,
                           const std::optional<NamedTensor>& more = std::nullopt) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : layout.parameters) {
    const Shape shape = stored_shape(parameter, model);
    const auto values = elements_of(layout, parameter.name, state.weights);
    tensors.push_back({parameter.name, DType::kF32, shape,
                       std::as_bytes(values.first(static_cast<size_t>(shape.num_elems())))});
  }
  if (more) {
    tensors.push_back(*more);
  }
  return save_checkpoint(folder, {.step = 3},
                         std::array{CheckpointShard{.weights = stream_of(tensors)}}, {});
}

TEST_F(Checkpointing, NonFiniteWeightsOfAnEarlierVersionAreRefusedByName) {
  ModelState state = random_state(layout_, model_, 5);
  const std::string name = layout_.parameters[2].name;
  elements_of(layout_, name, state.weights)[3] = std::numeric_limits<float>::quiet_NaN();
  const LoadedCheckpoint checkpoint(save_unchecked(folder_ / "c", layout_, model_, state));
  const CheckpointedState loaded(checkpoint, layout_, model_);
  EXPECT_EQ(message_of<DataError>([&] { whole_state(layout_, loaded); }),
            fmt::format("'{}': tensor \"{}\" has NaN at element 3", checkpoint.path(), name));
}

TEST_F(Checkpointing, TensorsThatTheModelLacksAreRefused) {
  ModelState state = random_state(layout_, model_, 5);
  const std::vector<float> values(6, 1.0f);
  const LoadedCheckpoint checkpoint(save_unchecked(
      folder_ / "c", layout_, model_, state,
      NamedTensor{"head.extra", DType::kF32, {2, 3}, std::as_bytes(std::span(values))}));
  EXPECT_EQ(message_of<DataError>([&] { CheckpointedState(checkpoint, layout_, model_); }),
            fmt::format("'{}' has the tensor \"head.extra\", which the model does not have",
                        checkpoint.path()));
}

TEST_F(Checkpointing, MomentsOfZeroTakeNoFile) {
  const InitialWeights fresh(layout_, model_, 4);
  const std::string path = save(fresh);
  EXPECT_FALSE(std::filesystem::exists(path + "/optimizer.safetensors"));
  const LoadedCheckpoint checkpoint(path);
  const CheckpointedState loaded(checkpoint, layout_, model_);
  EXPECT_TRUE(loaded.is_zero(StatePart::kExpAvg));
  EXPECT_FALSE(loaded.is_zero(StatePart::kWeights));
  const ModelState read = whole_state(layout_, loaded);
  EXPECT_EQ(read.weights, whole_state(layout_, fresh).weights);
  EXPECT_EQ(read.exp_avg_sq, empty_state(layout_).exp_avg_sq);
}

TEST_F(Checkpointing, WeightsAloneNeedNoOptimizerFile) {
  const ModelState state = random_state(layout_, model_, 5);
  const std::string path = save(state);
  std::filesystem::remove(path + "/optimizer.safetensors");
  const LoadedCheckpoint checkpoint(path, is_weight);
  const CheckpointedState loaded(checkpoint, layout_, model_);
  WorkerPool workers(1);
  std::vector<float> values(64);
  loaded.read(StatePart::kWeights, 0, 0, values, workers);
  EXPECT_TRUE(std::equal(values.begin(), values.end(), state.weights[0].begin()));
}

// As of runs without optimizer.ema, and of earlier versions.
TEST_F(Checkpointing, AveragesMayBeAbsent) {
  ModelState state = random_state(layout_, model_, 5);
  state.ema = empty_state(layout_).ema;
  const LoadedCheckpoint without(save(state));
  EXPECT_FALSE(has_averages(without));
  const CheckpointedState loaded(without, layout_, model_);
  EXPECT_TRUE(loaded.is_zero(StatePart::kEma));
  EXPECT_EQ(whole_state(layout_, loaded).exp_avg_sq, state.exp_avg_sq);
  EXPECT_EQ(message_of<ConfigError>([&] { AveragedWeights(loaded, "c"); }),
            "--ema: c has no averages of weights; leave the option out, or train with "
            "optimizer.ema = 0.999");
}

// Moments of another optimizer are not read, averages are.
TEST_F(Checkpointing, AveragesAreReadAsWeights) {
  const ModelState state = random_state(layout_, model_, 5);
  const LoadedCheckpoint checkpoint(save(state), is_weight_or_average);
  EXPECT_TRUE(has_averages(checkpoint));
  const CheckpointedState loaded(checkpoint, layout_, model_, false);
  EXPECT_TRUE(loaded.is_zero(StatePart::kExpAvg));
  const AveragedWeights averages(loaded, "c");
  WorkerPool workers(1);
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    std::vector<float> values(state.ema[unit].size());
    averages.read(StatePart::kWeights, unit, 0, values, workers);
    EXPECT_EQ(values, state.ema[unit]) << layout_.units[unit].name;
  }
  EXPECT_TRUE(averages.is_zero(StatePart::kEma));
}

/// Three writers with everything cut into pieces of at most 100 elements, dealt out in turns.
std::vector<StateShard> dealt_out(const ParameterLayout& layout, const ModelSpec& model,
                                  const StateSource& state) {
  std::vector<StateShard> shards(3, StateShard{.source = &state, .pieces = {}});
  size_t next = 0;
  for (const StatePiece& whole : whole_shard(layout, model, state).pieces) {
    for (int64_t begin = 0; begin < whole.range.run_elems; begin += 100) {
      StatePiece piece = whole;
      piece.range = {begin, 1, std::min<int64_t>(100, whole.range.run_elems - begin)};
      shards[next++ % 3].pieces.push_back(piece);
    }
  }
  return shards;
}

TEST_F(Checkpointing, ManyWritersMakeTheSameState) {
  const ModelState state = random_state(layout_, model_, 7);
  const LoadedCheckpoint checkpoint(save_model_state(
      folder_ / "c", {.step = 3}, layout_, model_, dealt_out(layout_, model_, state), {.keep = 0}));
  EXPECT_EQ(checkpoint.files().size(), 6u);
  const ModelState read = whole_state(layout_, CheckpointedState(checkpoint, layout_, model_), 61);
  EXPECT_EQ(read.weights, state.weights);
  EXPECT_EQ(read.exp_avg, state.exp_avg);
  EXPECT_EQ(read.exp_avg_sq, state.exp_avg_sq);
  EXPECT_EQ(read.ema, state.ema);
}

ModelSpec small_llama() {
  ModelSpec spec = small_gpt2();
  spec.style = kLlamaStyle;
  spec.qkv_bias = false;
  return spec;
}

/// The state as versions 1 and 2 stored it: all gate rows, then all up rows.
ModelState with_gates_in_front(const ParameterLayout& layout, ModelState state) {
  for (const int layer : {0, 1}) {
    const std::string name = fmt::format("layers.{}.mlp.fc1.weight", layer);
    const auto columns = static_cast<size_t>(layout.parameters[layout.by_name.at(name)].shape[1]);
    for (const StatePart part : kStateParts) {
      const std::span<float> values = elements_of(layout, name, state.part(part));
      const std::vector<float> in_turns(values.begin(), values.end());
      const size_t half = values.size() / columns / 2;
      for (size_t row = 0; row < 2 * half; ++row) {
        const size_t from = row < half ? 2 * row : 2 * (row - half) + 1;
        std::copy_n(in_turns.begin() + static_cast<std::ptrdiff_t>(from * columns), columns,
                    values.begin() + static_cast<std::ptrdiff_t>(row * columns));
      }
    }
  }
  return state;
}

/// Makes a checkpoint say that an earlier version wrote it; the first one had no index.
void set_version(const std::string& path, int64_t version) {
  const std::string file = path + "/state.json";
  StoredState stored = parse_state(read_text_file(file, 1 << 20), file);
  stored.version = version;
  if (version == 1) {
    std::erase_if(stored.files, [](const FileRecord& record) { return record.name == kIndexFile; });
  }
  write_test_file(file, print_state(stored));
}

void expect_reads(const std::string& path, const ParameterLayout& layout, const ModelSpec& model,
                  const ModelState& expected) {
  const LoadedCheckpoint checkpoint(path);
  const CheckpointedState loaded(checkpoint, layout, model);
  for (const int64_t piece_elems : {int64_t{1} << 20, int64_t{999}, int64_t{61}, int64_t{7}}) {
    const ModelState read = whole_state(layout, loaded, piece_elems);
    EXPECT_EQ(read.weights, expected.weights) << "in pieces of " << piece_elems;
    EXPECT_EQ(read.exp_avg, expected.exp_avg) << "in pieces of " << piece_elems;
    EXPECT_EQ(read.exp_avg_sq, expected.exp_avg_sq) << "in pieces of " << piece_elems;
  }
}

TEST_F(Checkpointing, EarlierVersionsHaveGateRowsInFrontOfUpRows) {
  const ModelSpec model = small_llama();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const ModelState state = random_state(layout, model, 8);
  const ModelState old = with_gates_in_front(layout, state);
  ASSERT_NE(old.weights, state.weights);
  const auto save_in = [&](const std::string& folder, const ModelState& stored) {
    return save_model_state(folder_ / folder, {.step = 3}, layout, model,
                            std::array{whole_shard(layout, model, stored)}, {.keep = 0});
  };
  expect_reads(save_in("now", state), layout, model, state);
  for (const int64_t version : {1, 2}) {
    const std::string path = save_in(fmt::format("version_{}", version), old);
    set_version(path, version);
    expect_reads(path, layout, model, state);
  }
}

// As many ranks wrote them: pieces that end within rows, and in other halves than they begin in.
TEST_F(Checkpointing, EarlierVersionsOfManyWritersAreReadInTodaysOrder) {
  const ModelSpec model = small_llama();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const ModelState state = random_state(layout, model, 9);
  const ModelState old = with_gates_in_front(layout, state);
  const std::string path = save_model_state(folder_ / "c", {.step = 3}, layout, model,
                                            dealt_out(layout, model, old), {.keep = 0});
  set_version(path, 2);
  expect_reads(path, layout, model, state);
}

TEST_F(Checkpointing, EarlierVersionsOfGpt2AreReadAsTheyAre) {
  const ModelState state = random_state(layout_, model_, 10);
  const std::string path = save(state);
  set_version(path, 2);
  expect_reads(path, layout_, model_, state);
}

// A preset of then and of now are different models.
TEST_F(Checkpointing, EarlierVersionsOfPresetsHaveUnscaledFrequencies) {
  const std::string path = save(random_state(layout_, model_, 11));
  RunConfig config;
  config.model.preset = "llama-1b";
  const auto scaling = [&] {
    return checkpointed_model(LoadedCheckpoint(path), config).rope_scaling;
  };
  EXPECT_EQ(scaling(), find_preset("llama-1b").spec.rope_scaling);
  set_version(path, 3);
  EXPECT_EQ(scaling(), RopeScaling());
  config.model.preset = "gpt2-124m";
  EXPECT_EQ(scaling(), RopeScaling());
}

/// A source that counts the bytes that it lends and the largest request.
class CountingState final : public StateSource {
 public:
  explicit CountingState(const ParameterLayout& layout) : state_(empty_state(layout)) {}

  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool& workers) const override {
    largest_bytes = std::max(largest_bytes, static_cast<int64_t>(out.size_bytes()));
    state_.read(part, unit, begin, out, workers);
  }
  HostBlock host_block(int64_t size_bytes) const override {
    lent_bytes += size_bytes;
    return StateSource::host_block(size_bytes);
  }

  mutable int64_t largest_bytes = 0;
  mutable int64_t lent_bytes = 0;

 private:
  ModelState state_;
};

TEST_F(Checkpointing, HoldsTwoPiecesOnTheHost) {
  const CountingState state(layout_);
  save(state);
  EXPECT_EQ(state.lent_bytes, checkpoint_host_bytes(layout_));
  EXPECT_LE(state.largest_bytes, checkpoint_host_bytes(layout_) / 2);

  ModelSpec large = find_preset("llama-8b").spec;
  const ParameterLayout many = make_parameter_layout(model_parameters(large));
  EXPECT_EQ(checkpoint_host_bytes(many), 2 * kStatePieceElems * 4);  // of 96 GB
}

TEST_F(Checkpointing, AnotherModelIsRefusedBeforeAnythingIsRead) {
  const LoadedCheckpoint checkpoint(save(empty_state(layout_)));
  ModelSpec other = model_;
  other.layers = 3;
  const ParameterLayout longer = make_parameter_layout(model_parameters(other));
  EXPECT_THAT(message_of<DataError>([&] { CheckpointedState(checkpoint, longer, other); }),
              HasSubstr("has no tensor \"layers.2."));
  other = model_;
  other.vocabulary = 51;
  EXPECT_THAT(message_of<DataError>([&] { CheckpointedState(checkpoint, layout_, other); }),
              HasSubstr("tensor \"embedding.tokens\""));
}

TEST_F(Checkpointing, AnErrorOfTheDeviceLeavesNoCheckpoint) {
  class Failing final : public StateSource {
   public:
    void read(StatePart part, size_t, int64_t, std::span<float>, WorkerPool&) const override {
      if (part == StatePart::kExpAvg) {
        throw DeviceError("the device is gone");
      }
    }
  };
  EXPECT_EQ(message_of<DeviceError>([&] { save(Failing()); }), "the device is gone");
  EXPECT_EQ(find_latest_checkpoint(folder_ / "c"), std::nullopt);
}

}  // namespace
}  // namespace braid
