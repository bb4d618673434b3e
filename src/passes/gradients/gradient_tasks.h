#pragma once

#include <vector>

#include "ir/program.h"

namespace braid {

/// A communication that makes gradients: phase comm, writes a buffer of role grad or main_grad.
bool communicates_gradients(const Program& program, const Task& task);

/// A task of phase wgrad that turns gradients into gradients, with no activation at hand: what
/// rounds them before they are reduced, and what adds up or widens the result.
bool converts_gradients(const Program& program, const Task& task);

/// By group: whether it carries activations too.
std::vector<bool> groups_with_activations(const Program& program);

}  // namespace braid
