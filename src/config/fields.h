#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace braid {

/// Where a key's value lives in one RunConfig.
using ValueRef =
    std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                 std::vector<std::string>*, std::optional<bool>*, std::optional<int64_t>*,
                 std::optional<double>*, std::optional<std::string>*>;

/// Allowed values of a key. Limits are inclusive unless `excludes_maximum`; for a list they apply
/// to each element.
struct Limits {
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool excludes_maximum = false;
  std::span<const std::string_view> allowed = {};  // strings only; empty: any
};

/// Meaning of `true` and `false` for a key that used to be a switch and now holds a name, so that
/// older run files and configurations in older checkpoints stay readable.
struct FormerSwitch {
  std::string_view when_true;
  std::string_view when_false;
};

/// What a changed value means for a run that continues from a checkpoint. The trainer prints every
/// change.
enum class OnResume : uint8_t {
  kRefused,    ///< it makes another run: refused unless the user names the key
  kByContent,  ///< the key names data: refused if their content has changed
  kAllowed,    ///< the run goes on
};

/// One key of the run file. This is the only description of a key; loading, `--set`, printing, help
/// and docs use it.
struct Field {
  std::string_view section;
  std::string_view name;
  ValueRef (*value)(RunConfig&);
  Limits limits;
  std::string_view doc;
  std::optional<FormerSwitch> former = std::nullopt;
  std::optional<OnResume> on_resume = std::nullopt;  ///< nullopt: as its section
};

struct Section {
  std::string_view name;
  std::string_view doc;
  OnResume on_resume = OnResume::kRefused;  ///< of the keys that do not say it themselves
};

/// In the order of documents and dumps.
std::span<const Section> config_sections();
/// Sorted by section in the order of `config_sections`.
std::span<const Field> config_fields();

/// nullptr if there is no such key.
const Field* find_field(std::string_view section, std::string_view name);

/// "train.steps".
std::string full_name(const Field& field);

/// What the key says, or its section.
OnResume on_resume(const Field& field);

}  // namespace braid
