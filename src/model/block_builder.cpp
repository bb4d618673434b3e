#include "model/block_builder.h"

#include "base/errors.h"
#include "model/parameter_shard.h"
#include "ops/collectives.h"
#include "ops/columns.h"
#include "ops/linear.h"
#include "ops/magnitude.h"
#include "ops/operand_checker.h"

namespace braid {

BlockBuilder::BlockBuilder(StageGraph& graph, const ModelSpec& spec, const ForwardOptions& options,
                           const StageSlice& stage)
    : spec_(spec), options_(options), builder_(graph) {
  for (const Parameter& parameter : stage_parameters(spec, stage)) {
    parameters_.emplace(parameter.name,
                        local_parameter(spec, parameter, {options.tensor, options.experts}));
  }
}

TokenPositions BlockBuilder::positions() const {
  if (options_.cache) {
    return {.second_begin = options_.cache->capacity - 1};
  }
  return context().is_split() ? context().positions(sequence()) : TokenPositions{};
}

RopeScaling BlockBuilder::rope_scaling() const {
  return spec_.rope_scaling.for_tokens(options_.cache ? options_.cache->capacity : sequence());
}

std::optional<CacheOperands> BlockBuilder::cache() {
  if (!options_.cache) {
    return std::nullopt;
  }
  return CacheOperands{.begins = row_input(kCacheBegins, options_.microbatch),
                       .counts = row_input(kCacheCounts, options_.microbatch),
                       .sequences = options_.microbatch,
                       .capacity = options_.cache->capacity};
}

std::optional<ValueId> BlockBuilder::document_starts() {
  return documents().documents || options_.cache ? std::optional(row_input(kDocumentStarts, rows()))
                                                 : std::nullopt;
}

std::optional<ValueId> BlockBuilder::attention_starts() {
  if (!documents().documents || context().inner == 1) {
    return document_starts();
  }
  return row_input(kExchangedDocumentStarts, rows() * context().inner);
}

ValueId BlockBuilder::row_input(std::string_view name, int64_t rows) {
  return builder_.named_value({.name = std::string(name),
                               .dtype = DType::kI32,
                               .shape = {rows},
                               .kind = ValueKind::kInput});
}

ValueId BlockBuilder::to_all(ValueId x, std::string_view site) {
  const std::string input = fmt::format("{}.input", site);
  if (!tensor().is_split()) {
    return x;
  }
  return tensor().sequence_parallel ? all_gather(builder_, x, kTensorGroup, tensor().size, input)
                                    : identity(builder_, x, kTensorGroup, input);
}

ValueId BlockBuilder::sum_of_all(ValueId y, std::string_view site) {
  const std::string sum = fmt::format("{}.sum", site);
  if (!tensor().is_split()) {
    return y;
  }
  return tensor().sequence_parallel ? reduce_scatter(builder_, y, kTensorGroup, tensor().size, sum)
                                    : all_reduce(builder_, y, kTensorGroup, sum);
}

ValueId BlockBuilder::loss_scale() {
  return builder_.named_value({.name = "loss_scale",
                               .dtype = accumulator_dtype(dtype()),
                               .shape = {1},
                               .kind = ValueKind::kInput});
}

std::optional<ValueId> BlockBuilder::expert_tally(std::string_view name, int64_t elems) {
  return options_.watch_experts ? std::optional(tally(name, elems)) : std::nullopt;
}

std::optional<ValueId> BlockBuilder::room_tally(std::string_view name, int64_t elems) {
  return options_.watch_room ? std::optional(tally(name, elems)) : std::nullopt;
}

ValueId BlockBuilder::tally(std::string_view name, int64_t elems) {
  return builder_.add_value({.name = builder_.scoped(name),
                             .dtype = DType::kI64,
                             .shape = {elems},
                             .kind = ValueKind::kTally});
}

ValueId BlockBuilder::param(const std::string& name) {
  const auto found = parameters_.find(name);
  check(found != parameters_.end(), "the model has no parameter {}", name);
  return builder_.named_value({.name = name,
                               .dtype = dtype(),
                               .shape = found->second.shape,
                               .kind = ValueKind::kParam,
                               .frozen = found->second.frozen});
}

ValueId BlockBuilder::scoped_param(std::string_view name) {
  return param(builder_.scoped(name));
}

std::optional<ValueId> BlockBuilder::bias(std::string_view site) {
  const std::string name = builder_.scoped(fmt::format("{}.bias", site));
  return parameters_.contains(name) ? std::optional(param(name)) : std::nullopt;
}

ValueId BlockBuilder::column_linear(ValueId x, std::string_view site,
                                    std::initializer_list<Matrix> matrices) {
  return adapted_linear(to_all(x, site), site, {.value = bias(site)}, matrices);
}

/// A product is linear: the sum over ranks also adds up what adapters make of each rank's columns,
/// and each addend has the gains of the sum.
ValueId BlockBuilder::row_linear(ValueId x, std::string_view site,
                                 std::initializer_list<Matrix> matrices) {
  const Bias all_of_bias{.value = bias(site), .split_columns = true};
  return sum_of_all(adapted_linear(x, site, all_of_bias, matrices), site);
}

ValueId BlockBuilder::adapted_linear(ValueId x, std::string_view site, const Bias& bias,
                                     std::initializer_list<Matrix> matrices) {
  std::vector<Matrix> found;
  for (const Matrix& matrix : matrices) {
    if (parameters_.contains(builder_.scoped(lora_b_name(site, matrix.name)))) {
      found.push_back(matrix);
    }
  }
  const bool has_magnitudes = !found.empty() && spec_.lora.magnitudes;
  const bool adds_bias = !bias.value || !bias.split_columns || tensor().index == 0;
  const ValueId weight = scoped_param(fmt::format("{}.weight", site));
  const ValueId y = linear(builder_,
                           {.x = x,
                            .weight = weight,
                            .bias = has_magnitudes ? std::nullopt : bias.value,
                            .adds_bias = has_magnitudes || adds_bias},
                           site);
  if (found.empty()) {
    return y;
  }
  const ValueId adapted = add_adapters(builder_, y, adapters_of(x, site, found), spec_.lora.scale(),
                                       fmt::format("{}.lora", site));
  return has_magnitudes
             ? apply_magnitudes(builder_, adapted,
                                {.change = scoped_param(lora_magnitude_name(site)),
                                 .squares = squares_of(weight, site, found, bias.split_columns),
                                 .bias = bias.value,
                                 .adds_bias = adds_bias},
                                fmt::format("{}.lora_magnitude", site))
             : adapted;
}

std::vector<Adapter> BlockBuilder::adapters_of(ValueId x, std::string_view site,
                                               std::span<const Matrix> matrices) {
  const int64_t rank = spec_.lora.rank;
  const int64_t all_ranks = std::ssize(matrices) * rank;
  const ValueId u = linear(builder_, {.x = x, .weight = scoped_param(lora_a_name(site))},
                           fmt::format("{}.lora_a", site));
  std::vector<Adapter> adapters;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const std::string_view name = matrices[i].name;
    const ValueId own = take_columns(
        builder_, u,
        {.runs = 1, .width = all_ranks, .begin = static_cast<int64_t>(i) * rank, .size = rank},
        fmt::format("{}.lora_a.{}", site, name));
    adapters.push_back(
        {.z = linear(builder_, {.x = own, .weight = scoped_param(lora_b_name(site, name))},
                     fmt::format("{}.lora_b.{}", site, name)),
         .columns = matrices[i].columns});
  }
  return adapters;
}

/// Ranks that split the columns of the weight have parts of its rows.
ValueId BlockBuilder::squares_of(ValueId weight, std::string_view site,
                                 std::span<const Matrix> matrices, bool split_columns) {
  std::vector<Adapter> factors;
  for (const Matrix& matrix : matrices) {
    factors.push_back(
        {.z = scoped_param(lora_b_name(site, matrix.name)), .columns = matrix.columns});
  }
  const ValueId squares = adapted_squares(builder_,
                                          {.weight = weight,
                                           .a = scoped_param(lora_a_name(site)),
                                           .adapters = factors,
                                           .scale = spec_.lora.scale()},
                                          fmt::format("{}.lora_squares", site));
  return split_columns && tensor().is_split()
             ? all_reduce(builder_, squares, kTensorGroup, fmt::format("{}.lora_squares.sum", site))
             : squares;
}

}  // namespace braid
