#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"
#include "plan/tallies.h"
#include "runtime/step_exchange.h"

namespace braid {

/// What one rank's tasks of a step counted at one place.
struct Tally {
  TallyPlace place;
  std::vector<int64_t> values;
};

/// Sums of what the router at one place added to the losses of a step, on one rank.
struct RouterLossSums {
  std::string site;  ///< "layers.0.moe.losses"
  double balance = 0;
  double z = 0;
};

/// Everything that the ranks of a process, or of a run, counted in a step.
struct StepTallies {
  std::vector<Tally> tallies;
  std::vector<RouterLossSums> losses;
};

/// Finds a rank's tallies in the results of its steps.
class TallyReader {
 public:
  /// `program`: the rank's training step.
  explicit TallyReader(const Program& program)
      : tallies_(tally_ranges(program)), losses_(router_loss_ranges(program)) {}

  /// Appends those of a step.
  void read(const StepExchange::Values& results, StepTallies& to) const;

 private:
  std::vector<TallyRange> tallies_;
  std::vector<TallyRange> losses_;
};

}  // namespace braid
