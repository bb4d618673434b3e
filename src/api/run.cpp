#include <memory>
#include <utility>

#include "api/run_state.h"
#include "config/load.h"
#include "config/reference.h"

namespace braid::api {
Run::Run(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Run Run::load(const std::string& path, const std::vector<std::string>& overrides) {
  return with_public_errors([&] {
    return Run(std::make_shared<const State>(State{
        .loaded = load_config(path, overrides), .planned = load_planned_config(path, overrides)}));
  });
}

std::string Run::config() const {
  return with_public_errors([&] { return to_toml(state_->planned.config); });
}

}  // namespace braid::api
