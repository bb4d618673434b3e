#include "runtime/step_exchange.h"

#include <algorithm>

#include "base/errors.h"
#include "model/forward.h"
#include "ops/router.h"
#include "ops/tally.h"

namespace braid {
namespace {

constexpr int64_t kAlignBytes = 256;  // of every span of a slot: the fastest alignment for copies

/// Calls `visit(name, span)` for what is always an input, for the results, or for what is either.
template <class Values, class Visit>
void visit_plain_inputs(Values& values, Visit&& visit) {
  visit("tokens", values.tokens);
  visit("labels", values.labels);
  visit(kDocumentStarts, values.document_starts);
  visit(kExchangedDocumentStarts, values.exchanged_document_starts);
  visit(kReferenceValue, values.reference);
  visit("loss_scale", values.loss_scale);
  visit("mtp_tokens", values.mtp_tokens);
  visit("mtp_labels", values.mtp_labels);
  visit("mtp_loss_scales", values.mtp_loss_scales);
  visit("optimizer_scalars", values.optimizer_scalars);
}

template <class Values, class Visit>
void visit_results(Values& values, Visit&& visit) {
  visit("losses", values.losses);
  visit("grad_norm", values.grad_norm);
  visit("grad_scale", values.grad_scale);
}

/// Those of the results that each rank has for itself.
template <class Values, class Visit>
void visit_plain_own_results(Values& values, Visit&& visit) {
  visit(kTalliesBuffer, values.tallies);
  visit(kRouterLossesBuffer, values.router_losses);
}

template <class Values, class Visit>
void visit_all(Values& values, Visit&& visit) {
  visit_plain_inputs(values, visit);
  visit_results(values, visit);
  visit_plain_own_results(values, visit);
  visit(kRoutingBuffer, values.routing);
}

/// Calls a function of the executor, such as `read`, for each span that the rank has.
template <class Read>
auto reads_of(Executor& executor, Read read) {
  return [&executor, read](std::string_view name, auto values) {
    if (!values.empty()) {
      (executor.*read)(name, 0, std::as_writable_bytes(values));
    }
  };
}

int64_t padded(int64_t size_bytes) {
  return (size_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

/// 0 if there is no buffer of that name.
int64_t elems_of(const Program& program, std::string_view name) {
  const auto found = std::ranges::find(program.buffers, name, &Buffer::name);
  return found == program.buffers.end() ? 0 : found->shape.num_elems();
}

/// Divides a block into spans.
class SlotCutter {
 public:
  SlotCutter(const Program& program, std::span<std::byte> block)
      : program_(program), block_(block) {}

  template <class T>
  void operator()(std::string_view name, std::span<T>& values) {
    const auto elems = static_cast<size_t>(elems_of(program_, name));
    const std::span<std::byte> bytes = block_.subspan(begin_bytes_, elems * sizeof(T));
    values = {reinterpret_cast<T*>(bytes.data()), elems};
    begin_bytes_ += static_cast<size_t>(padded(static_cast<int64_t>(bytes.size())));
  }

 private:
  const Program& program_;
  std::span<std::byte> block_;
  size_t begin_bytes_ = 0;
};

int64_t slot_bytes(const Program& program) {
  StepExchange::Values none;
  int64_t size_bytes = 0;
  const auto add = [&](std::string_view name, auto& values) {
    const auto elem_bytes = static_cast<int64_t>(sizeof(*values.data()));
    size_bytes += padded(elems_of(program, name) * elem_bytes);
  };
  visit_all(none, add);
  return size_bytes;
}

}  // namespace

StepExchange::StepExchange(Executor& executor, const Program& program, int num_slots,
                           RoutingUse routing)
    : executor_(executor),
      routing_(routing),
      block_(executor.host_block(num_slots * slot_bytes(program))) {
  SlotCutter cut(program, block_.bytes);
  for (int i = 0; i < num_slots; ++i) {
    visit_all(slots_.emplace_back(), cut);
  }
}

void StepExchange::visit_inputs(size_t slot, const auto& visit) const {
  const Values& values = slots_.at(slot);
  visit_plain_inputs(values, visit);
  if (routing_ == RoutingUse::kGiven) {
    visit(kRoutingBuffer, values.routing);
  }
}

void StepExchange::visit_own_results(size_t slot, const auto& visit) const {
  const Values& values = slots_.at(slot);
  visit_plain_own_results(values, visit);
  if (routing_ == RoutingUse::kRecorded) {
    visit(kRoutingBuffer, values.routing);
  }
}

void StepExchange::enqueue_inputs(size_t slot) {
  visit_inputs(slot, [&](std::string_view name, auto values) {
    if (!values.empty()) {
      executor_.enqueue_write(name, 0, std::as_bytes(values));
    }
  });
}

void StepExchange::enqueue_results(size_t slot) {
  visit_results(slots_.at(slot), reads_of(executor_, &Executor::enqueue_read));
}

void StepExchange::enqueue_own_results(size_t slot) {
  visit_own_results(slot, reads_of(executor_, &Executor::enqueue_read));
}

void StepExchange::write_inputs(size_t slot) {
  visit_inputs(slot, [&](std::string_view name, auto values) {
    if (!values.empty()) {
      executor_.write(name, 0, std::as_bytes(values));
    }
  });
}

void StepExchange::read_results(size_t slot) {
  visit_results(slots_.at(slot), reads_of(executor_, &Executor::read));
}

void StepExchange::read_own_results(size_t slot) {
  visit_own_results(slot, reads_of(executor_, &Executor::read));
}

}  // namespace braid
