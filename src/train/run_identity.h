#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/run_config.h"
#include "plan/run_spec.h"

namespace braid {

/// Names of the facts of a RunIdentity, under which checkpoints record them.
inline constexpr std::string_view kDataFact = "identity.data";
inline constexpr std::string_view kValidationFact = "identity.validation";  // of data.valid
inline constexpr std::string_view kTokenizerFact = "identity.tokenizer";
inline constexpr std::string_view kSampleOrderFact = "identity.sample_order";
inline constexpr std::string_view kBuildFact = "identity.build";
inline constexpr std::string_view kNumericsFact = "identity.numerics";
inline constexpr std::string_view kChosenFact = "identity.chosen";
inline constexpr std::string_view kRunFileFact = "identity.run_file";

/// What a configuration only names, such as the content of the data: text by the name of the fact.
using IdentityFacts = std::map<std::string, std::string, std::less<>>;

/// What makes a run this one and no other.
struct RunIdentity {
  RunConfig config;     ///< resolved; section [model] has the sizes and options in force
  IdentityFacts facts;  ///< empty in a checkpoint of an earlier version
};

RunIdentity identity_of(const RunSpec& run, IdentityFacts facts);

/// The identity of the run that wrote a checkpoint. Reads no tensors. Throws ConfigError if its
/// configuration is not one that this braid reads.
RunIdentity recorded_identity(const LoadedCheckpoint& checkpoint);

/// The facts of a recorded state.
IdentityFacts recorded_facts(const CheckpointState& state);

/// The differences between a checkpoint's run and the run that continues it.
struct RunChanges {
  std::vector<std::string> lines;    ///< all of them, for people: "train.steps = 100 -> 200"
  std::vector<std::string> refused;  ///< those that make it another run and were not named
  std::vector<std::string> keys;     ///< what to name so that they are not refused
};

/// The keys for which braid has chosen a value, as requested: "memory.recompute = "auto"". A run
/// may ask for another choice that ends with the same value, or the other way round.
std::string keys_left_to_braid(const RunConfig& requested, const RunConfig& chosen);

/// Compares each key by its rule (`on_resume`), and each fact that both have. A change is not
/// refused if `allowed` names its key ("data.split") or, for a fact, a key that causes it.
RunChanges compare_runs(const RunIdentity& before, const RunIdentity& after,
                        std::span<const std::string> allowed);

/// Throws ConfigError unless each name is a key, "section.key".
void check_allowed_changes(std::span<const std::string> names);

}  // namespace braid
