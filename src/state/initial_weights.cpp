#include "state/initial_weights.h"

#include "state/unit_range.h"

namespace braid {

void InitialWeights::read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                          WorkerPool& workers) const {
  fill_unit_range(layout_, unit, begin, out, workers,
                  [&](const Parameter& parameter, int64_t first, std::span<float> values) {
                    if (part == StatePart::kWeights) {
                      initial_values(parameter, vocabulary_, seed_, first, values);
                    } else {
                      std::fill(values.begin(), values.end(), 0.0f);
                    }
                  });
}

}  // namespace braid
