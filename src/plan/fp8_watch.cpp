#include "plan/fp8_watch.h"

#include <algorithm>

#include "ops/quantize.h"

namespace braid {

std::vector<Fp8Place> watched_places(const Program& program) {
  const auto buffer = std::ranges::find(program.buffers, kFp8WatchBuffer, &Buffer::name);
  if (buffer == program.buffers.end()) {
    return {};
  }
  std::vector<Fp8Place> places(static_cast<size_t>(buffer->shape[0]));
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    if (has_tally(spec)) {
      const BufferRange tally = program.operands_of(task).back();
      places.at(static_cast<size_t>(tally.begin / Fp8Tally::kSize)) = {
          .site = program.sites[task.label.site.index()],
          .factor = std::string(watched_factor(spec, task.label.phase))};
    }
  }
  return places;
}

}  // namespace braid
