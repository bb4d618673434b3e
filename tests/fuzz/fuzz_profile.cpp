// Any bytes as a profile: either one that prints and reads back the same and can be asked, or
// DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/errors.h"
#include "sim/measured_model.h"
#include "sim/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const braid::Profile profile = braid::parse_profile(text, "fuzz");
    if (braid::parse_profile(braid::print_profile(profile), "printed") != profile) {
      std::abort();
    }
    const auto model = braid::make_measured_model(profile, 8);
    for (const braid::TaskPoint& point : profile.tasks) {
      braid::OpSpec larger = point.spec;  // another shape, where the op allows it
      if (model->task_cost(point.spec).ns != point.timing.ns) {
        std::abort();
      }
      for (braid::OperandSpec& operand : larger.operands) {
        if (operand.shape.rank() > 0 && operand.shape[0] < 1024) {
          operand.shape[0] *= 2;
        }
      }
      try {
        static_cast<void>(model->task_cost(larger));
      } catch (const braid::InternalError&) {  // the op refuses it
      }
    }
    for (const braid::CommPoint& point : profile.communication) {
      static_cast<void>(model->comm_cost(point.spec));
    }
  } catch (const braid::DataError&) {
  }
  return 0;
}
