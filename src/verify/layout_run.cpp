#include "verify/layout_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "backends/registry/registry.h"
#include "backends/run_ranks.h"
#include "base/errors.h"
#include "data/batch_loader.h"
#include "model/forward.h"
#include "model/mtp.h"
#include "state/state_shards.h"

namespace braid {
namespace {

template <class T>
std::vector<std::byte> converted(std::span<const double> values) {
  std::vector<T> narrow;
  for (const double value : values) {
    narrow.push_back(T(static_cast<float>(value)));
  }
  const auto bytes = std::as_bytes(std::span<const T>(narrow));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> to_bytes(std::span<const double> values, DType dtype) {
  if (dtype == DType::kF64) {
    const auto bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
  }
  check(dtype == DType::kF32 || dtype == DType::kBF16, "no values of dtype {}", dtype_name(dtype));
  return dtype == DType::kF32 ? converted<float>(values) : converted<BFloat16>(values);
}

template <class T>
std::vector<double> widened(std::span<const std::byte> bytes) {
  const auto* const values = reinterpret_cast<const T*>(bytes.data());
  std::vector<double> result;
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    result.push_back(static_cast<double>(static_cast<float>(values[i])));
  }
  return result;
}

std::vector<double> from_bytes(std::span<const std::byte> bytes, DType dtype) {
  if (dtype == DType::kF64) {
    const auto* const values = reinterpret_cast<const double*>(bytes.data());
    return {values, values + bytes.size() / sizeof(double)};
  }
  check(dtype == DType::kF32 || dtype == DType::kBF16, "no values of dtype {}", dtype_name(dtype));
  return dtype == DType::kF32 ? widened<float>(bytes) : widened<BFloat16>(bytes);
}

/// 1 / number of labels that are not ignored, `depth` or more behind the beginning of a sequence.
double loss_scale_of(const TokenBatch& batch, int64_t depth = 0) {
  const int64_t valid = count_labels(batch.labels, batch.sequence, depth);
  return 1.0 / static_cast<double>(std::max<int64_t>(valid, 1));
}

}  // namespace

LayoutRunOptions layout_run_options(const RunSpec& run, int threads_per_rank) {
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  return {.threads_per_rank = threads_per_rank,
          .timeout_ns = run.config.runtime.timeout_s * kNsPerSecond,
          .links = run.links};
}

LayoutRun::LayoutRun(RunPlan plan, const LayoutRunOptions& options)
    : plan_(std::move(plan)), map_(make_state_map(plan_)) {
  transports_ = make_in_process_transports({.num_ranks = plan_.run.mesh.num_ranks(),
                                            .timeout_ns = options.timeout_ns,
                                            .links = options.links});
  for (size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
    executors_.push_back(host_backend().make_executor(plan_.ranks[rank].programs,
                                                      plan_.ranks[rank].memory,
                                                      {.transport = transports_[rank].get(),
                                                       .num_workers = options.threads_per_rank,
                                                       .poison_step_arena = true}));
  }
}

LayoutRun::~LayoutRun() = default;

const Buffer* LayoutRun::find_buffer(size_t rank, std::string_view name) const {
  for (const Buffer& buffer : plan_.ranks[rank].programs[kTrainProgram].buffers) {
    if (buffer.name == name) {
      return &buffer;
    }
  }
  return nullptr;
}

void LayoutRun::set_weights(const UnitValues& weights) {
  for (const StateBufferFacts& buffer : map_.buffers()) {
    executors_[buffer.rank]->zero(buffer.name);
  }
  for (const StateBuffer kind : {StateBuffer::kParam, StateBuffer::kMainWeight}) {
    for (size_t unit = 0; unit < weights.size(); ++unit) {
      const auto size = static_cast<int64_t>(weights[unit].size());
      map_.for_each_copy(kind, unit, 0, size, [&](const StateRun& run) {
        const StateBufferFacts& buffer = map_.buffers()[run.buffer];
        const std::span<const double> values(weights[unit].data() + run.unit_begin,
                                             static_cast<size_t>(run.num_elems));
        executors_[run.rank]->write(
            buffer.name, run.buffer_begin * static_cast<int64_t>(dtype_bytes(buffer.dtype)),
            to_bytes(values, buffer.dtype));
      });
    }
  }
}

void LayoutRun::write_io(size_t rank, std::string_view name, int64_t first,
                         std::span<const double> values) {
  if (const Buffer* const buffer = find_buffer(rank, name)) {
    executors_[rank]->write(name, first * static_cast<int64_t>(dtype_bytes(buffer->dtype)),
                            to_bytes(values, buffer->dtype));
  }
}

/// Microbatch m of data rank d is the run of sequences as in Megatron's sampler; a context rank has
/// its positions of each.
void LayoutRun::write_batch(size_t rank, const TokenBatch& batch) {
  const MeshPosition at = plan_.run.mesh.position(static_cast<int>(rank));
  const int64_t data = plan_.run.mesh.sizes().data;
  const int64_t microbatch = batch.num_sequences / (data * plan_.run.num_microbatches);
  const int64_t elems = microbatch * batch.sequence;
  const ContextShard context =
      context_shard(plan_.run.mesh, static_cast<int>(rank), plan_.run.parallel);
  const std::vector<int64_t> positions = context.position_list(batch.sequence);
  for (int64_t m = 0; m < plan_.run.num_microbatches; ++m) {
    const auto first = static_cast<size_t>((m * data + at.data) * elems);
    const auto put_at = [&](std::string_view name, int64_t index, std::span<const int32_t> values,
                            std::span<const int64_t> at_positions) {
      if (find_buffer(rank, name) != nullptr) {
        const std::vector<int32_t> part = take_positions(
            values.subspan(first, static_cast<size_t>(elems)), batch.sequence, at_positions);
        executors_[rank]->write(name, index * static_cast<int64_t>(part.size() * sizeof(int32_t)),
                                std::as_bytes(std::span(part)));
      }
    };
    const auto put = [&](std::string_view name, int64_t index, std::span<const int32_t> values) {
      put_at(name, index, values, positions);
    };
    put("tokens", m, batch.tokens);
    put("labels", m, batch.labels);
    if (!batch.reference.empty()) {
      const auto elems_of_pairs = static_cast<size_t>(microbatch * kReferenceColumns);
      const auto from = static_cast<size_t>(m * data + at.data) * elems_of_pairs;
      write_io(rank, kReferenceValue, m * microbatch * kReferenceColumns,
               std::span(batch.reference).subspan(from, elems_of_pairs));
    }
    put(kDocumentStarts, m, batch.document_starts);
    put_at(kExchangedDocumentStarts, m, batch.document_starts,
           context.outer_shard().position_list(batch.sequence));
    for (int64_t depth = 1; depth <= plan_.run.model.mtp_depth; ++depth) {
      const int64_t index = (depth - 1) * plan_.run.num_microbatches + m;
      put("mtp_tokens", index, shift_sequences(batch.tokens, batch.sequence, depth, 0));
      put("mtp_labels", index, shift_sequences(batch.labels, batch.sequence, depth, -1));
    }
  }
  const double scale = loss_scale_of(batch);
  write_io(rank, "loss_scale", 0, {&scale, 1});
  for (int64_t depth = 1; depth <= plan_.run.model.mtp_depth; ++depth) {
    const double mtp_scale = mtp_weight(plan_.run.model) * loss_scale_of(batch, depth);
    write_io(rank, "mtp_loss_scales", depth - 1, {&mtp_scale, 1});
  }
}

double LayoutRun::step(const TokenBatch& batch, std::span<const float> scalars) {
  std::vector<Executor*> executors;
  const std::vector<double> numbers(scalars.begin(), scalars.end());
  for (size_t rank = 0; rank < executors_.size(); ++rank) {
    write_batch(rank, batch);
    if (const Buffer* const taken = find_buffer(rank, "optimizer_scalars")) {
      const auto count = static_cast<size_t>(taken->num_elems());
      write_io(rank, taken->name, 0, std::span(numbers).first(count));
    }
    executors.push_back(executors_[rank].get());
  }
  run_ranks(executors, kTrainProgram);
  std::vector<double> losses = read_io(0, "losses");
  if (plan_.run.preference) {  // behind them are figures
    losses.resize(static_cast<size_t>(plan_.run.num_microbatches));
  }
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

std::vector<double> LayoutRun::read_io(size_t rank, std::string_view name) const {
  const Buffer* const buffer = find_buffer(rank, name);
  check(buffer != nullptr, "rank {} has no buffer {}", rank, name);
  std::vector<std::byte> bytes(static_cast<size_t>(buffer->size_bytes()));
  executors_[rank]->read(name, 0, bytes);
  return from_bytes(bytes, buffer->dtype);
}

double LayoutRun::grad_norm() const {
  return read_io(0, "grad_norm").front();
}

std::vector<double> LayoutRun::read_buffer(size_t index) const {
  const StateBufferFacts& facts = map_.buffers()[index];
  return read_io(facts.rank, facts.name);
}

UnitValues LayoutRun::read(StateBuffer kind) const {
  return read_by_unit([kind](size_t) { return kind; });
}

UnitValues LayoutRun::read_by_unit(const std::function<StateBuffer(size_t unit)>& kind_of) const {
  UnitValues values;
  std::vector<std::vector<double>> contents(map_.buffers().size());
  for (size_t unit = 0; unit < plan_.layout.units.size(); ++unit) {
    const int64_t size = plan_.layout.units[unit].num_elems;
    std::vector<double> target(static_cast<size_t>(size), 0.0);
    map_.for_each_element(kind_of(unit), unit, 0, size, [&](const StateRun& run) {
      std::vector<double>& content = contents[run.buffer];
      if (content.empty()) {
        content = read_buffer(run.buffer);
      }
      std::copy_n(content.begin() + run.buffer_begin, run.num_elems,
                  target.begin() + run.unit_begin);
    });
    values.push_back(std::move(target));
  }
  return values;
}

UnitValues LayoutRun::weights() const {
  return read_by_unit([this](size_t unit) { return buffer_of(StatePart::kWeights, map_, unit); });
}

double LayoutRun::copies_differ(StateBuffer kind) const {
  const UnitValues first = read(kind);
  std::vector<std::vector<double>> contents(map_.buffers().size());
  double worst = 0;
  for (size_t unit = 0; unit < first.size(); ++unit) {
    const auto size = static_cast<int64_t>(first[unit].size());
    map_.for_each_copy(kind, unit, 0, size, [&](const StateRun& run) {
      std::vector<double>& content = contents[run.buffer];
      if (content.empty()) {
        content = read_buffer(run.buffer);
      }
      for (int64_t i = 0; i < run.num_elems; ++i) {
        const double difference = std::abs(content[static_cast<size_t>(run.buffer_begin + i)] -
                                           first[unit][static_cast<size_t>(run.unit_begin + i)]);
        worst = difference <= worst ? worst : difference;  // NaN counts as worst
      }
    });
  }
  return worst;
}

}  // namespace braid
