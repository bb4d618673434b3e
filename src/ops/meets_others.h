#pragma once

#include <vector>

#include "ir/program.h"

namespace braid {

/// Whether the task communicates with other ranks, and so can wait for them.
bool meets_others(const Program& program, const Task& task);

/// `meets_others` for each task of the program.
std::vector<bool> tasks_that_meet_others(const Program& program);

/// Whether tasks of the program send or receive messages, as the ranks of a pipeline do.
bool exchanges_messages(const Program& program);

}  // namespace braid
