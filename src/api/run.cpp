#include <memory>
#include <utility>

#include "api/run_state.h"
#include "config/load.h"
#include "config/reference.h"

namespace braid::api {
Run::Run(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Run Run::load(const std::string& path, const std::vector<std::string>& overrides) {
  return with_public_errors([&] {
    const RunConfig loaded = load_config(path, overrides);
    return Run(
        std::make_shared<const State>(State{.loaded = loaded, .planned = plan_config(loaded)}));
  });
}

Run Run::parse(const std::string& text, const std::string& name,
               const std::vector<std::string>& overrides) {
  return with_public_errors([&] {
    RunConfig loaded = parse_config(text, name, overrides);
    if (loaded.logging.run_folder.empty()) {
      loaded.logging.run_folder = "runs/" + name;
    }
    return Run(
        std::make_shared<const State>(State{.loaded = loaded, .planned = plan_config(loaded)}));
  });
}

std::string Run::config() const {
  return with_public_errors([&] { return to_toml(state_->planned.config); });
}

}  // namespace braid::api
