#pragma once

#include <any>
#include <map>
#include <typeindex>
#include <utility>

#include "passes/pass.h"

namespace braid {

/// Options of passes: at most one value of each type. A type that is not set has its defaults.
class PipelineOptions {
 public:
  template <class Options>
  const Options& get() const {
    static const Options kDefaults{};
    const auto found = values_.find(typeid(Options));
    return found == values_.end() ? kDefaults : *std::any_cast<Options>(&found->second);
  }

  /// Mutable access; adds the defaults if the type is not set.
  template <class Options>
  Options& of() {
    std::any& value = values_[typeid(Options)];
    if (!value.has_value()) {
      value = Options{};
    }
    return *std::any_cast<Options>(&value);
  }

 private:
  std::map<std::type_index, std::any> values_;
};

using RunPass = std::function<PassResult(Program, const PassContext&)>;

/// Makes `Pass::run` from a function. Copies the options that are set at this time.
inline RunPass run_of(PassResult (*pass)(Program)) {
  return [pass](Program program, const PassContext&) { return pass(std::move(program)); };
}

inline RunPass run_of(PassResult (*pass)(Program, const PassContext&)) {
  return pass;
}

template <class Options>
RunPass run_of(PassResult (*pass)(Program, const Options&), const PipelineOptions& options) {
  return [pass, its_options = options.get<Options>()](Program program, const PassContext&) {
    return pass(std::move(program), its_options);
  };
}

template <class Options>
RunPass run_of(PassResult (*pass)(Program, const Options&, const PassContext&),
               const PipelineOptions& options) {
  return [pass, its_options = options.get<Options>()](Program program, const PassContext& context) {
    return pass(std::move(program), its_options, context);
  };
}

}  // namespace braid
