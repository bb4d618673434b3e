#pragma once

#include <vector>

#include "ir/program.h"

namespace braid {

/// Whether the task communicates gradients: its phase is comm and it writes a buffer of role grad
/// or main_grad.
bool communicates_gradients(const Program& program, const Task& task);

/// Whether the task is of phase wgrad and computes gradients from gradients only, without
/// activations: rounding before a reduction, or adding or widening its result.
bool converts_gradients(const Program& program, const Task& task);

/// For each group, whether it also communicates activations.
std::vector<bool> groups_with_activations(const Program& program);

}  // namespace braid
