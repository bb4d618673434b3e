#include "parallel/optimizer_options.h"

#include "base/errors.h"

namespace braid {

int num_moments(UpdateRule rule, const OptimizerOptions& options) {
  switch (rule) {
    case UpdateRule::kAdamw:
      return 2;
    case UpdateRule::kSgd:
      return options.momentum > 0 ? 1 : 0;
    case UpdateRule::kLion:
    case UpdateRule::kMuon:
      return 1;
  }
  throw_internal_error("no such rule of updates");
}

UpdateRule update_rule(OptimizerKind kind, bool is_muon) {
  switch (kind) {
    case OptimizerKind::kAdamw:
      return UpdateRule::kAdamw;
    case OptimizerKind::kLion:
      return UpdateRule::kLion;
    case OptimizerKind::kSgd:
      return UpdateRule::kSgd;
    case OptimizerKind::kMuon:
      return is_muon ? UpdateRule::kMuon : UpdateRule::kAdamw;
  }
  throw_internal_error("no such optimizer");
}

}  // namespace braid
