#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// All that matters of a program to other ranks, in program order: a line per task that
/// communicates, records or waits. It has the op with attributes and operand types, the group by
/// name and size, stream and label, and for each event it waits for how many lines further up that
/// was recorded. Ranks with equal lines cannot be told apart by `verify_ranks`, but for the ranks
/// of their groups: tasks that others do not notice, and the numbers of tasks, are not in them.
std::vector<std::string> call_lines(const Program& program);

/// Hash of the lines, the same in every process: programs of one number have equal lines, but for
/// collisions of 64 bits.
uint64_t hash_of_lines(const std::vector<std::string>& lines);

}  // namespace braid
