#include "plan/expert_gathers.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace braid {
namespace {

/// The first unit with experts that ranks gather.
const ParameterUnit* first_gathered(const ParameterLayout& layout) {
  const auto found = std::ranges::find_if(layout.units, [&](const ParameterUnit& unit) {
    const ParameterDomain& domain =
        layout.domain_of(static_cast<size_t>(&unit - layout.units.data()));
    return domain.kind == DomainKind::kExpert && domain.shard == ShardKind::kParameters &&
           domain.num_shards > 1;
  });
  return found == layout.units.end() ? nullptr : &*found;
}

/// The part of what a group of so many ranks has together that a rank receives from the others.
double others_part(int64_t ranks) {
  return static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

}  // namespace

std::optional<ExpertGathers> expert_gathers(const RunSpec& run, const ParameterLayout& layout) {
  const ParameterUnit* const unit = first_gathered(layout);
  if (unit == nullptr) {
    return std::nullopt;
  }
  const RunConfig& config = run.config;
  const ParameterDomain& domain = layout.domain_of(static_cast<size_t>(unit - layout.units.data()));
  const auto weight_bytes =
      static_cast<double>(unit->is_fp8 ? 1 : dtype_bytes(domain.weight_dtype.value_or(run.dtype)));
  const auto gradient_bytes = static_cast<double>(dtype_bytes(domain.reduce_dtype));
  // Experts that no other rank has: as many ranks as share them now, if there are so many experts.
  const int64_t expert_ranks =
      std::gcd(config.parallel.expert * domain.num_shards, run.model.experts);
  const int64_t tokens = run.microbatch_sequences * config.train.sequence / config.parallel.context;
  const auto rows = static_cast<double>(tokens * run.model.experts_per_token);
  const double row_bytes =
      static_cast<double>(run.model.width) * static_cast<double>(dtype_bytes(run.dtype));
  return ExpertGathers{
      .layer = fmt::format("layers.{}", unit->layer),
      .gathered_bytes = static_cast<int64_t>(static_cast<double>(unit->num_elems) *
                                             others_part(domain.num_shards) *
                                             (2 * weight_bytes + gradient_bytes)),
      .moved_bytes = static_cast<int64_t>(
          4 * rows * row_bytes * (others_part(expert_ranks) - others_part(config.parallel.expert))),
      .expert_ranks = expert_ranks};
}

std::string describe_expert_gathers(const std::optional<ExpertGathers>& gathers) {
  if (!gathers) {
    return "";
  }
  const std::string both = fmt::format(
      "experts  {}: a rank gathers and reduces {} of experts per microbatch; with parallel.expert "
      "= "
      "{} it would receive {} of tokens",
      gathers->layer, format_bytes(gathers->gathered_bytes), gathers->expert_ranks,
      format_bytes(gathers->moved_bytes));
  return both + (gathers->is_cheaper_to_move()
                     ? fmt::format(": set parallel.expert = {}\n", gathers->expert_ranks)
                     : ", which is not less\n");
}

}  // namespace braid
