#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ops/op_traits.h"

namespace braid {

/// What tasks at one place of the model count.
struct TallyPlace {
  TallyKind kind = TallyKind::kNone;
  std::string site;    ///< "layers.0.attention.qkv"
  std::string factor;  ///< of kFp8Losses: "x", "w" or "dy"
};

/// Elements [begin, end) of a buffer that a training step leaves for the host.
struct TallyRange {
  TallyPlace place;
  int64_t begin = 0;
  int64_t end = 0;
};

/// The tallies to which tasks of a rank's training step add, in the order of the buffer "tallies"
/// (ops/tally.h); empty if it has none.
std::vector<TallyRange> tally_ranges(const Program& program);

/// The losses of routers that tasks of a rank's training step write, in the order of the buffer
/// "router_losses" (ops/router.h): [2] for each output and microbatch, of kind kNone.
std::vector<TallyRange> router_loss_ranges(const Program& program);

}  // namespace braid
