#include "runtime/step_tallies.h"

#include <span>

namespace braid {
namespace {

template <class T>
std::span<const T> part_of(std::span<T> values, const TallyRange& range) {
  return values.subspan(static_cast<size_t>(range.begin),
                        static_cast<size_t>(range.end - range.begin));
}

}  // namespace

void TallyReader::read(const StepExchange::Values& results, StepTallies& to) const {
  for (const TallyRange& range : tallies_) {
    const std::span<const int64_t> values = part_of(results.tallies, range);
    to.tallies.push_back({.place = range.place, .values = {values.begin(), values.end()}});
  }
  for (const TallyRange& range : losses_) {  // one for each microbatch, those of a layer in a row
    const std::span<const float> values = part_of(results.router_losses, range);
    if (to.losses.empty() || to.losses.back().site != range.place.site) {
      to.losses.push_back({.site = range.place.site});
    }
    to.losses.back().balance += values[0];
    to.losses.back().z += values[1];
  }
}

}  // namespace braid
