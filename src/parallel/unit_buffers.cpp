#include "parallel/unit_buffers.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/errors.h"
#include "ops/operand_checker.h"

namespace braid {

UnitBuffers::UnitBuffers(TaskWriter& writer, const ParameterLayout& layout,
                         const UnitBufferOptions& options)
    : writer_(writer),
      layout_(layout),
      options_(options),
      grads_dtype_(options.dtype == DType::kBF16 ? options.main_grads_dtype
                                                 : accumulator_dtype(options.dtype)),
      has_main_grads_(layout.units.size(), false) {
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    owned_.push_back(owned_range(layout_, unit, options_.shard_indices));
  }
  add_params();
  if (options_.has_grads) {
    add_main_grads();
  }
}

DType UnitBuffers::compute_dtype(size_t unit) const {
  return options_.dtype == DType::kF64 ? DType::kF64
                                       : domain(unit).weight_dtype.value_or(options_.dtype);
}

DType UnitBuffers::dtype(size_t unit) const {
  return has_only_main_weights(unit) ? DType::kF32 : compute_dtype(unit);
}

bool UnitBuffers::has_only_main_weights(size_t unit) const {
  const bool stays_whole =
      domain(unit).shard == ShardKind::kParameters && !is_sharded(unit);  // gathered after updates
  return options_.fp8 && layout_.units[unit].is_fp8 && !stays_whole;
}

bool UnitBuffers::has_main_weights(size_t unit) const {
  if (layout_.units[unit].frozen) {
    return false;
  }
  const ShardKind shard = domain(unit).shard;
  return compute_dtype(unit) == DType::kBF16 || shard == ShardKind::kOptimizer ||
         shard == ShardKind::kGradients || domain(unit).splits_shards();
}

UnitRange UnitBuffers::held(size_t unit) const {
  return held_range(layout_, unit, options_.shard_indices);
}

void UnitBuffers::add_params() {
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    const ParameterUnit& facts = layout_.units[unit];
    const bool only_main = has_only_main_weights(unit);
    const bool is_main = only_main && has_main_weights(unit);
    const UnitRange range = only_main          ? owned(unit)
                            : is_sharded(unit) ? held(unit)
                                               : UnitRange{0, facts.num_elems};
    params_.push_back(
        {writer_.builder().add_buffer(
             {.name = is_main ? main_weight_buffer_name(facts) : param_buffer_name(facts),
              .dtype = dtype(unit),
              .shape = {range.num_elems()},
              .role = is_main ? BufferRole::kMainWeight : BufferRole::kParam,
              .lifetime = Lifetime::kPersistent}),
         range});
  }
}

void UnitBuffers::add_main_grads() {
  const Lifetime lifetime = options_.persistent_grads ? Lifetime::kPersistent : Lifetime::kStep;
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    const ParameterUnit& facts = layout_.units[unit];
    const UnitRange range = owned(unit);
    if (facts.frozen) {
      main_grads_.emplace_back();
      shard_grads_.emplace_back();
      whole_grads_.emplace_back();
      continue;
    }
    main_grads_.push_back({writer_.builder().add_buffer({.name = main_grad_buffer_name(facts),
                                                         .dtype = grads_dtype_,
                                                         .shape = {range.num_elems()},
                                                         .role = BufferRole::kMainGrad,
                                                         .lifetime = lifetime}),
                           range});
    shard_grads_.push_back(main_grads_.back());
    if (domain(unit).splits_shards()) {
      const UnitRange shard = held(unit);
      shard_grads_.back() = {writer_.step_buffer("shard_grads." + facts.name, grads_dtype_,
                                                 shard.num_elems(), BufferRole::kMainGrad),
                             shard};
    }
    BufferId& whole = whole_grads_.emplace_back();
    if (domain(unit).shard == ShardKind::kNone) {
      whole = main_grads_.back().buffer;
    } else if (domain(unit).shard == ShardKind::kOptimizer) {
      whole = writer_.step_buffer("whole_grads." + facts.name, grads_dtype_, facts.num_elems,
                                  BufferRole::kMainGrad);
    }
  }
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    if (!layout_.units[unit].frozen && !shards_gradients(unit)) {
      zero_gaps(unit, whole_grads_[unit]);  // some microbatch writes each slot
    }
  }
}

bool gathers_before_use(const ParameterLayout& layout, size_t unit, WeightGather weight_gather) {
  const ParameterDomain& domain = layout.domain_of(unit);
  const bool holds_more = domain.shard == ShardKind::kOptimizer ||
                          domain.shard == ShardKind::kGradients || domain.splits_shards();
  return holds_more && !layout.units[unit].frozen &&
         (weight_gather == WeightGather::kBeforeUse ||
          (weight_gather == WeightGather::kFirstAfterUpdate && unit > 0));
}

Label UnitBuffers::label(size_t unit, Phase phase) {
  const ParameterUnit& facts = layout_.units[unit];
  return {.phase = phase, .layer = facts.layer, .site = writer_.builder().site(facts.name)};
}

/// Collectives and norms use whole units, so elements that no backward writes must be zero. Zeros
/// the gaps between slots before the backward writes the buffer, so that a reduction waits only for
/// the backward.
void UnitBuffers::zero_gaps(size_t unit, BufferId buffer) {
  int64_t covered = 0;
  const auto zero_until = [&](int64_t end) {
    if (covered < end) {
      writer_.fill_zero({buffer, covered, end}, label(unit, Phase::kWgrad));
    }
  };
  for (const size_t index : layout_.units[unit].slots) {
    zero_until(layout_.slots[index].begin);
    covered = layout_.slots[index].end;
  }
  zero_until(layout_.units[unit].num_elems);
}

/// Zeros the slots that a job has not written.
void UnitBuffers::zero_slots_but(size_t unit, BufferId buffer, const std::set<int64_t>& written) {
  for (const size_t index : layout_.units[unit].slots) {
    const ParameterSlot& slot = layout_.slots[index];
    if (!written.contains(slot.begin)) {
      writer_.fill_zero({buffer, slot.begin, slot.end}, label(unit, Phase::kWgrad));
    }
  }
}

void UnitBuffers::begin_job(const Job& job) {
  const bool turns_round = job_.kind == JobKind::kForward && job.kind != JobKind::kForward &&
                           job_.microbatch == job.microbatch &&
                           job_.virtual_stage == job.virtual_stage;
  std::erase_if(gathered_, [&](const auto& entry) {
    return is_sharded(entry.first) && (!turns_round || layout_.units[entry.first].layer >= 0);
  });
  job_ = job;
}

bool UnitBuffers::is_sharded(size_t unit) const {
  return domain(unit).shard == ShardKind::kParameters &&
         layout_.units[unit].bucket >= options_.whole_units;
}

bool UnitBuffers::gathers_updated_weights(size_t unit) const {
  return domain(unit).shard != ShardKind::kNone &&
         (!is_sharded(unit) || domain(unit).splits_shards()) && !layout_.units[unit].frozen &&
         !has_only_main_weights(unit);
}

bool UnitBuffers::gathers_before_use(size_t unit) const {
  const bool stays_whole = domain(unit).shard == ShardKind::kParameters && !is_sharded(unit);
  return gathers_updated_weights(unit) && !stays_whole &&
         braid::gathers_before_use(layout_, unit, options_.weight_gather);
}

void UnitBuffers::gather_updated_weights(size_t unit) {
  const ParameterDomain& facts = domain(unit);
  const BufferRange shard = params_[unit].at(held(unit));
  const Label at = label(unit, Phase::kComm);
  if (facts.splits_shards()) {
    writer_.all_gather(params_[unit].at(owned(unit)), shard, facts.replica_group, at);
  }
  if (!is_sharded(unit)) {
    writer_.all_gather(shard, params_[unit].all(), facts.shard_group, at);
  }
}

BufferId UnitBuffers::weights(size_t unit) {
  if (gathers_copies(unit)) {
    return gathered(unit, fp8_shard(unit));
  }
  if (gathers_before_use(unit) && is_up_to_date_.insert(unit).second) {
    gather_updated_weights(unit);
  }
  return is_sharded(unit) ? gathered(unit, params_[unit].buffer) : params_[unit].buffer;
}

BufferId UnitBuffers::fp8_shard(size_t unit) {
  const BufferId part = fp8_parts_.at(unit);
  if (!domain(unit).splits_shards()) {
    return part;
  }
  const auto [entry, inserted] = fp8_shards_.try_emplace(unit, BufferId());
  if (inserted) {
    entry->second = writer_.step_buffer("fp8_shard." + layout_.units[unit].name,
                                        writer_.builder().program().buffers[part.index()].dtype,
                                        held(unit).num_elems(), BufferRole::kParam);
    writer_.all_gather(writer_.builder().whole(part), writer_.builder().whole(entry->second),
                       domain(unit).replica_group, label(unit, Phase::kComm));
  }
  return entry->second;
}

/// A gather that is not of one job has the label of those in `gather_updated_weights`.
BufferId UnitBuffers::gathered(size_t unit, BufferId source) {
  const auto [entry, inserted] = gathered_.try_emplace(unit, BufferId());
  if (inserted) {
    const ParameterUnit& facts = layout_.units[unit];
    const bool of_job = is_sharded(unit);
    const std::string suffix = of_job ? fmt::format(".{}", to_string({job_})) : std::string();
    entry->second = writer_.step_buffer(fmt::format("gathered.{}{}", facts.name, suffix),
                                        writer_.builder().program().buffers[source.index()].dtype,
                                        facts.num_elems, BufferRole::kGathered);
    Label at = label(unit, Phase::kComm);
    if (of_job) {
      at.microbatch = job_.microbatch;
      at.virtual_stage = job_.virtual_stage;
    }
    writer_.all_gather(writer_.builder().whole(source), {entry->second, 0, facts.num_elems},
                       domain(unit).shard_group, at);
  }
  return entry->second;
}

std::pair<BufferRange, bool> UnitBuffers::gradient(const ParameterSlot& slot) {
  if (!shards_gradients(slot.unit)) {
    const bool first = written_.emplace(slot.unit, slot.begin).second;
    return {{whole_grads_[slot.unit], slot.begin, slot.end}, first};
  }
  const JobGradientKey key{slot.unit, job_.microbatch, job_.virtual_stage};
  const auto [entry, inserted] = job_grads_.try_emplace(key);
  JobGradient& target = entry->second;
  if (inserted) {
    const ParameterUnit& facts = layout_.units[slot.unit];
    target.buffer = writer_.step_buffer(
        fmt::format("grads.{}.m{}.v{}", facts.name, job_.microbatch, job_.virtual_stage),
        grads_dtype_, facts.num_elems, BufferRole::kGrad);
    zero_gaps(slot.unit, target.buffer);
  }
  const bool first = target.written.insert(slot.begin).second;
  return {{target.buffer, slot.begin, slot.end}, first};
}

/// Reduces units in reverse order, as the backward finishes them.
void UnitBuffers::end_job() {
  const bool completes = job_.kind == JobKind::kBackward || job_.kind == JobKind::kWgrad;
  if (!completes) {
    return;
  }
  for (size_t unit = layout_.units.size(); unit-- > 0;) {
    const auto found = job_grads_.find({unit, job_.microbatch, job_.virtual_stage});
    if (found == job_grads_.end()) {
      continue;
    }
    zero_slots_but(unit, found->second.buffer, found->second.written);
    scatter(unit, {.whole = {found->second.buffer, 0, layout_.units[unit].num_elems},
                   .part = shard_grads_[unit].all(),
                   .group = domain(unit).shard_group,
                   .name = fmt::format("{}.m{}.v{}", layout_.units[unit].name, job_.microbatch,
                                       job_.virtual_stage),
                   .accumulates = has_main_grads_[unit]});
    has_main_grads_[unit] = true;
    job_grads_.erase(found);
  }
}

void UnitBuffers::scatter(size_t unit, const Scatter& to) {
  const Label at = label(unit, Phase::kComm);
  const Label compute = label(unit, Phase::kWgrad);
  const ParameterDomain& facts = domain(unit);
  const bool narrow = facts.reduce_dtype != grads_dtype_ && grads_dtype_ == DType::kF32;
  if (!narrow && !to.accumulates) {
    writer_.reduce_scatter(to.whole, to.part, to.group, at);
    return;
  }
  const DType dtype = narrow ? facts.reduce_dtype : grads_dtype_;
  BufferRange source = to.whole;
  if (narrow) {
    const BufferId rounded = writer_.step_buffer("rounded_grads." + to.name, dtype,
                                                 to.whole.end - to.whole.begin, BufferRole::kGrad);
    source = writer_.builder().whole(rounded);
    writer_.cast(to.whole, source, compute);
  }
  const BufferRange sum = writer_.builder().whole(writer_.step_buffer(
      "reduced_grads." + to.name, dtype, to.part.end - to.part.begin, BufferRole::kGrad));
  writer_.reduce_scatter(source, sum, to.group, at);
  if (to.accumulates) {
    writer_.accumulate(sum, to.part, compute);
  } else {
    writer_.cast(sum, to.part, compute);
  }
}

void UnitBuffers::all_reduce(size_t unit, std::string_view group) {
  const Label at = label(unit, Phase::kComm);
  const BufferRange range = main_grads_[unit].all();
  const DType dtype = domain(unit).reduce_dtype;
  if (writer_.groups().size(group) == 1) {
    return;
  }
  if (dtype == grads_dtype_ || grads_dtype_ != DType::kF32) {
    writer_.all_reduce(range, group, at);
    return;
  }
  const Label compute = label(unit, Phase::kWgrad);
  const BufferRange rounded =
      writer_.builder().whole(writer_.step_buffer("rounded_sums." + layout_.units[unit].name, dtype,
                                                  range.end - range.begin, BufferRole::kGrad));
  writer_.cast(range, rounded, compute);
  writer_.all_reduce(rounded, group, at);
  writer_.cast(rounded, range, compute);
}

/// All-reduces the partial sums of tensor ranks. Their shards cover the same elements, so only
/// owned elements are summed. Each sum has its own site, because many have the same size and
/// verification matches them by label.
void UnitBuffers::reduce_partial_sums(size_t unit) {
  const UnitRange own = owned(unit);
  for (const size_t index : layout_.units[unit].slots) {
    const ParameterSlot& slot = layout_.slots[index];
    size_t number = 0;
    for (const PartialSum& partial : layout_.shards[index].partial_sums) {
      Label at = label(unit, Phase::kComm);
      at.site = writer_.builder().site(
          fmt::format("{}.sum{}", layout_.parameters[slot.parameter].name, number++));
      const UnitRange range{std::max(own.begin, slot.begin + partial.elements.begin),
                            std::min(own.end, slot.begin + partial.elements.end)};
      if (range.begin < range.end) {
        writer_.all_reduce(main_grads_[unit].at(range), partial.group, at);
      }
    }
  }
}

void UnitBuffers::finish_gradients(bool shares_tied_embedding) {
  check(job_grads_.empty(), "{} gradients of jobs were never reduced", job_grads_.size());
  for (size_t unit = layout_.units.size(); unit-- > 0;) {
    if (layout_.units[unit].frozen) {
      continue;
    }
    const ParameterDomain& facts = domain(unit);
    if (facts.shard == ShardKind::kNone) {
      all_reduce(unit, facts.gradient_group);
    } else if (facts.shard == ShardKind::kOptimizer) {
      scatter(unit, {.whole = writer_.builder().whole(whole_grads_[unit]),
                     .part = shard_grads_[unit].all(),
                     .group = facts.shard_group,
                     .name = layout_.units[unit].name});
    }
    if (facts.splits_shards()) {
      scatter(unit, {.whole = shard_grads_[unit].all(),
                     .part = main_grads_[unit].all(),
                     .group = facts.replica_group,
                     .name = layout_.units[unit].name + ".replica"});
    } else if (facts.shard != ShardKind::kNone) {
      all_reduce(unit, facts.replica_group);
    }
    reduce_partial_sums(unit);
    if (shares_tied_embedding && layout_.units[unit].name == kEmbeddingTable) {
      writer_.all_reduce(main_grads_[unit].all(), "embedding", label(unit, Phase::kComm));
    }
  }
}

}  // namespace braid
