#include "plan/run_costs.h"

#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "plan/device_cost.h"
#include "plan/parallel_setup.h"
#include "sim/linked_model.h"
#include "sim/measured_model.h"

namespace braid {

std::unique_ptr<CostModel> with_links_of_run(std::unique_ptr<CostModel> model,
                                             const LinksConfig& links) {
  return model->cluster().device.is_host ? make_linked_model(std::move(model), link_options(links))
                                         : std::move(model);
}

std::shared_ptr<const CostModel> overlap_cost_model(const RunConfig& config) {
  const std::string& name = config.overlap.cost;
  if (name.empty()) {
    return nullptr;
  }
  check_cost_is_named(config);
  try {
    return with_links_of_run(load_cost_model(name, static_cast<int>(config.parallel.ranks)),
                             config.links);
  } catch (const ConfigError& error) {
    throw_config_error("overlap.cost = {}: {}", quote(name, 60), error.what());
  } catch (const DataError& error) {  // a file that is not there, or no profile
    throw_data_error("overlap.cost = {}: {}", quote(name, 60), error.what());
  }
}

}  // namespace braid
