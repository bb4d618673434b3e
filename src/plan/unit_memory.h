#pragma once

#include <string>
#include <vector>

#include "ir/program.h"
#include "memory/unit_pools.h"

namespace braid {

/// The step buffers into which the program gathers weights; none if ranks hold them whole. A unit
/// is all that begins with one layer, or one place outside of layers ("head"); its buckets are the
/// units of ParameterLayout.
std::vector<UnitUse> gathered_weights(const Program& program);

/// The step buffers that hold gradients of whole units until the ranks that share them have reduced
/// them; none unless gradients are sharded. A reduction in another dtype has a buffer of its own.
std::vector<UnitUse> unreduced_gradients(const Program& program);

/// The pools that both kinds of buffers of a training program would need, without a kind of which
/// it has none. Requires: events, as `compare_unit_pools`.
std::vector<UnitMemory> unit_memory(const Program& program);

/// A line each: braid's plan of these buffers alone, and what pools would take.
std::string describe_unit_memory(const std::vector<UnitMemory>& memory);

}  // namespace braid
