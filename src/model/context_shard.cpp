#include "model/context_shard.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "base/nearest_divisor.h"
#include "model/blocks/registry.h"

namespace braid {
namespace {

void check_blocks(const ModelSpec& spec, const TensorShard& tensor, const ContextShard& context,
                  int64_t sequence) {
  const int64_t heads = exchanged_heads(spec, tensor);
  const int64_t nearest = nearest_divisor(std::gcd(heads, context.size), context.inner);
  if (context.size % context.inner != 0) {
    throw_config_error(
        "parallel.context_inner = {}: must divide parallel.context = {}; the nearest that fits "
        "this model is {}",
        context.inner, context.size, nearest);
  }
  for (const BlockDefinition* const block : all_blocks()) {
    if (block->check_context != nullptr && spec.layers.has(*block)) {
      block->check_context(spec, tensor, context, {.sequence = sequence, .nearest_inner = nearest});
    }
  }
}

}  // namespace

/// An odd number of inner ranks shares two chunks, so that one of them has a part of both.
ContextSections ContextShard::sections(int64_t sequence) const {
  const int64_t of_chunks = inner % 2 == 0 ? 1 : 2;
  return {.ranks = size,
          .index = index,
          .inner = inner,
          .sections = outer() == 1 ? runs(sequence) : of_chunks};
}

int64_t ContextShard::sequence_multiple() const {
  return outer() == 1 ? size : std::lcm(2 * outer(), size);
}

TokenPositions ContextShard::positions(int64_t sequence) const {
  const int64_t half = sequence / outer() / 2;
  const int64_t tokens = sequence / size;
  if (runs(sequence) == 2) {
    const int64_t run = tokens / 2;
    return {.first_begin = index * run, .second_begin = half + index * run, .split = run};
  }
  const int64_t first = outer_index() * half;
  const int64_t second = (2 * outer() - 1 - outer_index()) * half;
  // Tokens [begin, begin + tokens) of the outer rank's two chunks.
  const int64_t begin = index % inner * tokens;
  const int64_t in_first = std::clamp<int64_t>(half - begin, 0, tokens);
  return {.first_begin = in_first > 0 ? first + begin : 0,
          .second_begin = in_first < tokens ? second + begin + in_first - half : 0,
          .split = in_first};
}

std::vector<int64_t> ContextShard::position_list(int64_t sequence) const {
  const TokenPositions at = positions(sequence);
  std::vector<int64_t> list;
  for (int64_t token = 0; token < sequence / size; ++token) {
    list.push_back(at.of(token));
  }
  return list;
}

int64_t exchanged_heads(const ModelSpec& spec, const TensorShard& tensor) {
  int64_t heads = 0;
  for (const BlockDefinition* const block : all_blocks()) {
    if (block->exchanged_heads != nullptr && spec.layers.has(*block)) {
      heads = std::gcd(heads, block->exchanged_heads(spec, tensor));
    }
  }
  return heads;
}

void check_context_parallel(const ModelSpec& spec, const TensorShard& tensor,
                            const ContextShard& context, int64_t sequence) {
  if (context.size < 1 || context.inner < 1) {
    throw_config_error("parallel.context = {}: must be at least 1", context.size);
  }
  if (!context.is_split()) {
    return;
  }
  check_blocks(spec, tensor, context, sequence);
  const int64_t factor = context.sequence_multiple();
  if (sequence % factor != 0) {
    const int64_t below = sequence / factor * factor;
    throw_config_error(
        "train.sequence = {}: must be a multiple of {}parallel.context = {}; the nearest {}",
        sequence, factor == context.size ? "" : "2 * ", factor,
        below == 0 ? fmt::format("is {}", factor)
                   : fmt::format("are {} and {}", below, below + factor));
  }
}

}  // namespace braid
