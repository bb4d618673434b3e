#include "passes/tensor/tensor_sites.h"

#include <algorithm>
#include <utility>

#include "ops/op.h"

namespace braid {

SiteOverlaps site_overlaps(const OverlapConfig& overlap) {
  SiteOverlaps sites;
  for (const TensorSiteChoice& choice : tensor_site_choices(overlap)) {
    sites[choice.site] = {choice.method, choice.splits};
  }
  return sites;
}

SiteOverlaps default_site_overlaps() {
  return site_overlaps({});
}

std::string product_site(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  const std::optional<ProductPart> part = product_part(spec);
  if (!part || !task.label.site.valid()) {
    return {};
  }
  const char* const suffix = *part == ProductPart::kFprop   ? "_fprop"
                             : *part == ProductPart::kDgrad ? "_dgrad"
                                                            : "_wgrad";
  const std::string& place = program.sites[task.label.site.index()];
  return place.substr(place.rfind('.') + 1) + suffix;
}

SiteOverlap overlap_of(const SiteOverlaps& sites, std::string_view site) {
  const auto found = sites.find(site);
  return found == sites.end() ? SiteOverlap{} : found->second;
}

bool is_tensor_communication(const Program& program, const Task& task) {
  const auto group = group_of(program, program.spec(task));
  return group && task.label.phase == Phase::kComm &&
         program.groups[group->index()].kind == GroupKind::kTensor &&
         program.groups[group->index()].ranks.size() > 1;
}

bool routes_tokens(const Program& program) {
  return std::ranges::any_of(program.specs.all(), [](const OpSpec& spec) {
    const OpDefinition* const op = find_known_op(spec.op);
    return op != nullptr && op->kind == OpKind::kRouting;
  });
}

bool move_tensor_communication(Program& program, int priority) {
  StreamId stream;
  bool moved = false;
  for (Task& task : program.tasks) {
    if (!is_tensor_communication(program, task)) {
      continue;
    }
    if (!stream.valid()) {
      const auto found = std::ranges::find_if(program.streams, [](const Stream& candidate) {
        return candidate.kind == StreamKind::kComm && candidate.name == "comm.tensor";
      });
      stream = StreamId(static_cast<size_t>(found - program.streams.begin()));
      if (found == program.streams.end()) {
        program.streams.push_back({"comm.tensor", StreamKind::kComm, priority});
      }
    }
    moved = moved || task.stream != stream;
    task.stream = stream;
  }
  if (moved) {
    clear_events(program);
  }
  return moved;
}

}  // namespace braid
