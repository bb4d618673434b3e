#include "plan/run_costs.h"

#include <utility>

#include "plan/parallel_setup.h"
#include "sim/linked_model.h"

namespace braid {

std::unique_ptr<CostModel> with_links_of_run(std::unique_ptr<CostModel> model,
                                             const LinksConfig& links) {
  return model->cluster().device.kind == "cpu"
             ? make_linked_model(std::move(model), link_options(links))
             : std::move(model);
}

}  // namespace braid
