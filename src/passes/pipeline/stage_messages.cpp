#include "passes/pipeline/stage_messages.h"

#include <string_view>

#include "model/blocks/registry.h"
#include "ops/op.h"

namespace braid {

bool is_stage_message(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  if (!is_message(spec)) {
    return false;
  }
  const auto group = group_of(program, spec);
  return group && program.groups[group->index()].kind == GroupKind::kPipeline;
}

bool is_feed_forward(const Program& program, const Task& task) {
  if (!task.label.site.valid()) {
    return false;
  }
  std::string_view name = program.sites[task.label.site.index()];
  while (!name.empty()) {
    const size_t end = name.find('.');
    const BlockDefinition* const block = find_block(name.substr(0, end));
    if (block != nullptr && block->role == BlockRole::kFeedForward) {
      return true;
    }
    name = end == std::string_view::npos ? std::string_view() : name.substr(end + 1);
  }
  return false;
}

}  // namespace braid
