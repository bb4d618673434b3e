#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Describes everything about a program that affects other ranks: one line, in program order, per
/// task that communicates, records or waits. A line has the op with attributes and operand types,
/// the group's name and size, stream and label, and for each event that the task waits for how many
/// lines earlier it was recorded. It does not contain other tasks or task numbers. `verify_ranks`
/// cannot distinguish ranks with equal lines, except by the ranks in their groups.
std::vector<std::string> call_lines(const Program& program);

/// Hash of the lines, the same in every process. Programs with equal hashes have equal lines,
/// except for 64-bit hash collisions.
uint64_t hash_of_lines(const std::vector<std::string>& lines);

}  // namespace braid
