#pragma once

#include <memory>

#include "comm/links.h"
#include "sim/cost_model.h"

namespace braid {

/// The prices of `model`, a CPU's, for ranks that are threads of one process and communicate over
/// emulated links. `comm_of` is the time of the link as in `LinkSchedule`, or the time of copying
/// and adding if that is longer or if the kind of group has no link.
///
/// Links do not slow compute; copying and adding do: threads of a rank share its cores, so compute
/// loses the time in which communication works, up to half of its rate. Throws InternalError if
/// `model` is null.
std::unique_ptr<CostModel> make_linked_model(std::unique_ptr<CostModel> model,
                                             const LinkOptions& links);

}  // namespace braid
