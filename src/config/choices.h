#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/dtype.h"
#include "base/errors.h"
#include "model/model_spec.h"
#include "parallel/optimizer_options.h"
#include "parallel/parallel_options.h"

namespace braid {

// The types behind the names in a run file. `resolve_run` (plan/run_spec.h) converts the names of a
// RunConfig into these types once. Code that runs before it, or writes a RunConfig, uses `choice`
// and `choice_name` itself.

enum class OverlapMode : uint8_t { kAuto, kManual, kOff };

/// overlap.pair_forward_backward.
enum class PairKind : uint8_t { kNone, kForwardBackward, kHalves, kForwardHalves };

/// overlap.comm_engine.
enum class EngineChoice : uint8_t { kAuto, kSm, kCopy, kNcclCopy, kHidden };

/// parallel.context_method.
enum class ContextExchange : uint8_t { kRing, kAllGather, kAllToAll, kAllToAllRing };

/// memory.recompute, where it may be left to braid.
enum class RecomputeChoice : uint8_t { kNone, kNorms, kAttention, kCompute, kFull, kAuto };

/// runtime.device.
enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };

/// runtime.processes.
enum class ProcessChoice : uint8_t { kAuto, kOne, kPerRank };

/// runtime.detect_nan.
enum class NanCheck : uint8_t { kOff, kLoss, kTensors };

/// logging.format.
enum class LogFormat : uint8_t { kShort, kMegatron };

/// A switch that may be left to braid.
enum class Switch : uint8_t { kAuto, kOn, kOff };

/// train.fp8: how many elements of a matrix share a scale.
enum class Fp8Choice : uint8_t { kOff, kTensor, kBlock, kMxfp8 };

/// train.fp8_weight_blocks: elements of a weight that share a scale of MXFP8, 1 x 32 or 32 x 32.
enum class WeightBlocks : uint8_t { kRows, kSquares };

/// train.fp8_sums: how the CPU sums products of FP8 factors.
enum class Fp8SumsChoice : uint8_t { kIdeal, kHopper };

/// moe.drop.
enum class DropChoice : uint8_t { kProbability, kPosition };

/// moe.exchange.
enum class ExchangeChoice : uint8_t { kAuto, kDirect, kBlocks, kHosts };

/// moe.on_overflow.
enum class OverflowChoice : uint8_t { kRerun, kError, kDrop };

/// model.router_scores.
enum class RouterScores : uint8_t { kSoftmax, kSigmoid };

/// optimizer.schedule.
enum class RateSchedule : uint8_t { kCosine, kLinear, kPolynomial, kInverseSqrt, kWsd, kConstant };

/// data.packing.
enum class DocumentPacking : uint8_t { kConcatenate, kBestFit };

/// preference.loss.
enum class PreferenceChoice : uint8_t { kNone, kDpo, kHinge, kIpo };

/// optimizer.decay_shape.
enum class DecayShape : uint8_t { kLinear, kCosine, kOneMinusSqrt };

/// memory.gather_budget: as much as the device has left.
inline constexpr std::string_view kAutoBudget = "auto";

template <class T>
struct NotAChoice;

/// The names of a type's values. Other types have no names and do not compile.
template <class T>
inline constexpr auto kChoices = NotAChoice<T>{};

template <class T, size_t N>
using Choices = std::array<std::pair<std::string_view, T>, N>;

template <>
inline constexpr auto kChoices<DType> =
    Choices<DType, 2>{{{"float32", DType::kF32}, {"bfloat16", DType::kBF16}}};

template <>
inline constexpr auto kChoices<LogFormat> =
    Choices<LogFormat, 2>{{{"short", LogFormat::kShort}, {"megatron", LogFormat::kMegatron}}};

template <>
inline constexpr auto kChoices<OverlapMode> = Choices<OverlapMode, 3>{
    {{"auto", OverlapMode::kAuto}, {"manual", OverlapMode::kManual}, {"off", OverlapMode::kOff}}};

template <>
inline constexpr auto kChoices<PairKind> =
    Choices<PairKind, 4>{{{"none", PairKind::kNone},
                          {"forward_backward", PairKind::kForwardBackward},
                          {"halves", PairKind::kHalves},
                          {"forward_halves", PairKind::kForwardHalves}}};

template <>
inline constexpr auto kChoices<EngineChoice> =
    Choices<EngineChoice, 5>{{{"auto", EngineChoice::kAuto},
                              {"sm", EngineChoice::kSm},
                              {"copy", EngineChoice::kCopy},
                              {"nccl_copy", EngineChoice::kNcclCopy},
                              {"hidden", EngineChoice::kHidden}}};

template <>
inline constexpr auto kChoices<ContextExchange> =
    Choices<ContextExchange, 4>{{{"ring", ContextExchange::kRing},
                                 {"all_gather", ContextExchange::kAllGather},
                                 {"a2a", ContextExchange::kAllToAll},
                                 {"a2a+ring", ContextExchange::kAllToAllRing}}};

template <>
inline constexpr auto kChoices<MambaContext> =
    Choices<MambaContext, 2>{{{"heads", MambaContext::kHeads}, {"states", MambaContext::kStates}}};

template <>
inline constexpr auto kChoices<ShardKind> =
    Choices<ShardKind, 4>{{{"none", ShardKind::kNone},
                           {"optimizer", ShardKind::kOptimizer},
                           {"gradients", ShardKind::kGradients},
                           {"parameters", ShardKind::kParameters}}};

template <>
inline constexpr auto kChoices<BucketKind> =
    Choices<BucketKind, 3>{{{"layer", BucketKind::kLayer},
                            {"virtual_stage", BucketKind::kVirtualStage},
                            {"bytes", BucketKind::kBytes}}};

template <>
inline constexpr auto kChoices<RecomputeChoice> =
    Choices<RecomputeChoice, 6>{{{"none", RecomputeChoice::kNone},
                                 {"norms", RecomputeChoice::kNorms},
                                 {"attention", RecomputeChoice::kAttention},
                                 {"compute", RecomputeChoice::kCompute},
                                 {"full", RecomputeChoice::kFull},
                                 {"auto", RecomputeChoice::kAuto}}};

template <>
inline constexpr auto kChoices<Fp8Choice> = Choices<Fp8Choice, 4>{{{"off", Fp8Choice::kOff},
                                                                   {"tensor", Fp8Choice::kTensor},
                                                                   {"block", Fp8Choice::kBlock},
                                                                   {"mxfp8", Fp8Choice::kMxfp8}}};

template <>
inline constexpr auto kChoices<WeightBlocks> =
    Choices<WeightBlocks, 2>{{{"rows", WeightBlocks::kRows}, {"squares", WeightBlocks::kSquares}}};

template <>
inline constexpr auto kChoices<Fp8SumsChoice> = Choices<Fp8SumsChoice, 2>{
    {{"ideal", Fp8SumsChoice::kIdeal}, {"hopper", Fp8SumsChoice::kHopper}}};

template <>
inline constexpr auto kChoices<DropChoice> = Choices<DropChoice, 2>{
    {{"probability", DropChoice::kProbability}, {"position", DropChoice::kPosition}}};

template <>
inline constexpr auto kChoices<ExchangeChoice> =
    Choices<ExchangeChoice, 4>{{{"auto", ExchangeChoice::kAuto},
                                {"direct", ExchangeChoice::kDirect},
                                {"blocks", ExchangeChoice::kBlocks},
                                {"hosts", ExchangeChoice::kHosts}}};

template <>
inline constexpr auto kChoices<OverflowChoice> =
    Choices<OverflowChoice, 3>{{{"rerun", OverflowChoice::kRerun},
                                {"error", OverflowChoice::kError},
                                {"drop", OverflowChoice::kDrop}}};

template <>
inline constexpr auto kChoices<RopeType> = kRopeTypes;

template <>
inline constexpr auto kChoices<RouterScores> = Choices<RouterScores, 2>{
    {{"softmax", RouterScores::kSoftmax}, {"sigmoid", RouterScores::kSigmoid}}};

template <>
inline constexpr auto kChoices<DeviceChoice> = Choices<DeviceChoice, 3>{
    {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}}};

template <>
inline constexpr auto kChoices<ProcessChoice> =
    Choices<ProcessChoice, 3>{{{"auto", ProcessChoice::kAuto},
                               {"one", ProcessChoice::kOne},
                               {"per_rank", ProcessChoice::kPerRank}}};

template <>
inline constexpr auto kChoices<NanCheck> = Choices<NanCheck, 3>{
    {{"off", NanCheck::kOff}, {"loss", NanCheck::kLoss}, {"tensors", NanCheck::kTensors}}};

template <>
inline constexpr auto kChoices<Switch> =
    Choices<Switch, 3>{{{"auto", Switch::kAuto}, {"on", Switch::kOn}, {"off", Switch::kOff}}};

template <>
inline constexpr auto kChoices<RateSchedule> =
    Choices<RateSchedule, 6>{{{"cosine", RateSchedule::kCosine},
                              {"linear", RateSchedule::kLinear},
                              {"polynomial", RateSchedule::kPolynomial},
                              {"inverse_sqrt", RateSchedule::kInverseSqrt},
                              {"wsd", RateSchedule::kWsd},
                              {"constant", RateSchedule::kConstant}}};

template <>
inline constexpr auto kChoices<DocumentPacking> = Choices<DocumentPacking, 2>{
    {{"concatenate", DocumentPacking::kConcatenate}, {"best_fit", DocumentPacking::kBestFit}}};

template <>
inline constexpr auto kChoices<PreferenceChoice> =
    Choices<PreferenceChoice, 4>{{{"none", PreferenceChoice::kNone},
                                  {"dpo", PreferenceChoice::kDpo},
                                  {"hinge", PreferenceChoice::kHinge},
                                  {"ipo", PreferenceChoice::kIpo}}};

template <>
inline constexpr auto kChoices<DecayShape> =
    Choices<DecayShape, 3>{{{"linear", DecayShape::kLinear},
                            {"cosine", DecayShape::kCosine},
                            {"one_minus_sqrt", DecayShape::kOneMinusSqrt}}};

template <>
inline constexpr auto kChoices<OptimizerKind> =
    Choices<OptimizerKind, 4>{{{"adamw", OptimizerKind::kAdamw},
                               {"lion", OptimizerKind::kLion},
                               {"sgd", OptimizerKind::kSgd},
                               {"muon", OptimizerKind::kMuon}}};

template <>
inline constexpr auto kChoices<MuonScale> = Choices<MuonScale, 2>{
    {{"match_rms_adamw", MuonScale::kMatchRmsAdamw}, {"original", MuonScale::kOriginal}}};

/// The names alone, in the same order.
template <class T>
constexpr auto names_of_choices() {
  std::array<std::string_view, kChoices<T>.size()> names;
  for (size_t i = 0; i < names.size(); ++i) {
    names[i] = kChoices<T>[i].first;
  }
  return names;
}

template <class T>
inline constexpr auto kChoiceNames = names_of_choices<T>();

/// The value of that name. Throws InternalError if there is none, because `validate` has checked
/// the name.
template <class T>
T choice(std::string_view name) {
  for (const auto& [known, value] : kChoices<T>) {
    if (known == name) {
      return value;
    }
  }
  throw_internal_error("no choice is called {}", name);
}

/// Inverse of `choice`.
template <class T>
std::string_view choice_name(T value) {
  for (const auto& [name, known] : kChoices<T>) {
    if (known == value) {
      return name;
    }
  }
  throw_internal_error("choice {} has no name", static_cast<int>(value));
}

}  // namespace braid
