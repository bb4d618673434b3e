#include "train/run_identity.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/changes.h"
#include "config/load.h"
#include "config/suggest.h"
#include "plan/model_setup.h"
#include "state/checkpointing.h"

namespace braid {
namespace {

constexpr std::string_view kFactPrefix = "identity.";
constexpr size_t kShownBytes = 200;

/// How a fact is compared.
struct FactRule {
  std::string_view name;
  std::string_view title;  // for people
  std::string_view key;    // what allows a change; empty: any change is allowed
  std::array<std::string_view, 9> causes = {};  // keys that change it too
};

// In the order of causes: the order of samples depends on the data, these on the tokenizer.
constexpr std::array kFactRules = {
    FactRule{kTokenizerFact, "content of the tokenizer", "data.tokenizer"},
    FactRule{kDataFact,
             "content of the training data",
             "data.train",
             {"data.blend", "data.tokenizer", "data.append_eod"}},
    FactRule{kValidationFact,
             "content of the validation data",
             "data.valid",
             {"data.tokenizer", "data.append_eod"}},
    FactRule{kSampleOrderFact,
             "order of the samples",
             "train.steps",
             {"data.train", "data.blend", "data.tokenizer", "data.append_eod", "data.split",
              "data.seed", "data.valid", "train.sequence", "train.global_batch"}},
    FactRule{kBuildFact, "build of braid", ""},
    FactRule{kNumericsFact, "set of libraries", ""},
    FactRule{kChosenFact, "keys that braid chooses", ""},
    FactRule{kRunFileFact, "run file", ""},
};

class Comparison {
 public:
  Comparison(const RunIdentity& before, const RunIdentity& after,
             std::span<const std::string> allowed)
      : before_(before), after_(after), allowed_(allowed.begin(), allowed.end()) {}

  RunChanges run() {
    for (const KeyChange& change : changed_keys(before_.config, after_.config)) {
      compare_key(change);
    }
    for (const FactRule& rule : kFactRules) {
      compare_fact(rule);
    }
    if (before_.facts.empty()) {
      changes_.lines.emplace_back(
          "the checkpoint records no identity: data and tokenizer cannot be compared");
    }
    changes_.keys.assign(missing_.begin(), missing_.end());
    return std::move(changes_);
  }

 private:
  void compare_key(const KeyChange& change) {
    const OnResume rule = on_resume(*change.field);
    // Without recorded content, only the name of the data is left to compare.
    const bool by_name = rule == OnResume::kByContent && before_.facts.empty();
    const std::string key = full_name(*change.field);
    changes_.lines.push_back(to_text(change));
    if (rule == OnResume::kAllowed) {
      return;
    }
    changed_.insert(key);
    if (rule == OnResume::kRefused || by_name) {
      require(key);
    }
  }

  void compare_fact(const FactRule& rule) {
    const auto old_fact = before_.facts.find(rule.name);
    const auto new_fact = after_.facts.find(rule.name);
    if (old_fact == before_.facts.end() || new_fact == after_.facts.end() ||
        old_fact->second == new_fact->second) {
      return;
    }
    changes_.lines.push_back(fmt::format("{}: {} -> {}", rule.title,
                                         printable(old_fact->second, kShownBytes),
                                         printable(new_fact->second, kShownBytes)));
    if (!rule.key.empty()) {
      changed_.insert(std::string(rule.key));
      require(key_of(rule));
    }
  }

  /// The key that the user may name for a changed fact: one that he has named, else one that has
  /// changed.
  std::string key_of(const FactRule& rule) const {
    std::string key(rule.key);
    if (allowed_.contains(key)) {
      return key;
    }
    if (rule.name == kDataFact && !after_.config.data.blend.empty()) {
      key = "data.blend";  // which names the data instead
    }
    for (const std::string_view cause : rule.causes) {
      const std::string name(cause);
      if (changed_.contains(name) && allowed_.contains(name)) {
        return name;
      }
      key = missing_.contains(name) ? name : key;
    }
    return key;
  }

  /// Refuses the change of the last line unless the key is named.
  void require(const std::string& key) {
    if (!allowed_.contains(key)) {
      changes_.refused.push_back(changes_.lines.back());
      missing_.insert(key);
    }
  }

  const RunIdentity& before_;
  const RunIdentity& after_;
  const std::set<std::string> allowed_;
  std::set<std::string> changed_;  // keys that are not free to change, and have changed
  std::set<std::string> missing_;  // in `allowed_`
  RunChanges changes_;
};

}  // namespace

RunIdentity identity_of(const RunSpec& run, IdentityFacts facts) {
  RunIdentity identity{.config = run.config, .facts = std::move(facts)};
  identity.config.model = model_keys(run.model);
  return identity;
}

RunIdentity recorded_identity(const LoadedCheckpoint& checkpoint) {
  const CheckpointState& state = checkpoint.state();
  RunIdentity identity{.config = parse_config(state.config, checkpoint.path() + "/state.json"),
                       .facts = recorded_facts(state)};
  identity.config.model = model_keys(checkpointed_model(checkpoint, identity.config));
  return identity;
}

IdentityFacts recorded_facts(const CheckpointState& state) {
  IdentityFacts facts;
  for (const auto& [name, value] : state.extra) {
    if (name.starts_with(kFactPrefix)) {
      facts.emplace(name, value);
    }
  }
  return facts;
}

std::string keys_left_to_braid(const RunConfig& requested, const RunConfig& chosen) {
  std::vector<std::string> keys;
  for (const KeyChange& change : changed_keys(chosen, requested)) {
    keys.push_back(fmt::format("{} = {}", full_name(*change.field), change.after));
  }
  return keys.empty() ? "none" : join(keys, ", ");
}

RunChanges compare_runs(const RunIdentity& before, const RunIdentity& after,
                        std::span<const std::string> allowed) {
  return Comparison(before, after, allowed).run();
}

void check_allowed_changes(std::span<const std::string> names) {
  for (const std::string& name : names) {
    const size_t dot = name.find('.');
    const std::string section = name.substr(0, dot);
    const std::string key = dot == std::string::npos ? "" : name.substr(dot + 1);
    if (find_field(section, key) == nullptr) {
      throw_config_error(
          "--allow-change {}: there is no such key; {}", quote(name, kShownBytes),
          is_section(section) ? suggest_key(section, key) : suggest_key_without_section(name));
    }
  }
}

}  // namespace braid
