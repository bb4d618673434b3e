#include "calibrate/ranks_at_once.h"

#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

class RanksAtOnce final : public Executor {
 public:
  explicit RanksAtOnce(std::vector<std::unique_ptr<Executor>> ranks) : ranks_(std::move(ranks)) {
    for (const auto& rank : ranks_) {
      pointers_.push_back(rank.get());
    }
  }

  void launch(size_t program_index) override {
    for (Executor* const rank : pointers_) {
      rank->launch(program_index);
    }
  }
  void wait() override {
    for (Executor* const rank : pointers_) {
      rank->wait();
    }
  }
  void write(std::string_view buffer, int64_t offset_bytes,
             std::span<const std::byte> bytes) override {
    for (Executor* const rank : pointers_) {
      rank->write(buffer, offset_bytes, bytes);
    }
  }
  void read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) override {
    first().read(buffer, offset_bytes, bytes);
  }
  void enqueue_write(std::string_view buffer, int64_t offset_bytes,
                     std::span<const std::byte> bytes) override {
    for (Executor* const rank : pointers_) {
      rank->enqueue_write(buffer, offset_bytes, bytes);
    }
  }
  void enqueue_read(std::string_view buffer, int64_t offset_bytes,
                    std::span<std::byte> bytes) override {
    first().enqueue_read(buffer, offset_bytes, bytes);
  }
  void zero(std::string_view buffer) override {
    for (Executor* const rank : pointers_) {
      rank->zero(buffer);
    }
  }
  HostBlock host_block(int64_t size_bytes) override { return first().host_block(size_bytes); }
  void set_finite_checks(bool enabled) override {
    for (Executor* const rank : pointers_) {
      rank->set_finite_checks(enabled);
    }
  }
  void set_tracing(bool enabled) override { first().set_tracing(enabled); }
  RankTimeline timeline() const override { return ranks_.front()->timeline(); }
  int64_t allocated_bytes() const override { return ranks_.front()->allocated_bytes(); }
  int64_t allocated_host_bytes() const override { return ranks_.front()->allocated_host_bytes(); }

 private:
  Executor& first() { return *ranks_.front(); }

  std::vector<std::unique_ptr<Executor>> ranks_;
  std::vector<Executor*> pointers_;
};

}  // namespace

ExecutorFactory ranks_at_once(ExecutorFactory make_one, int num_ranks) {
  check(num_ranks >= 1, "{} ranks at once", num_ranks);
  return [make_one = std::move(make_one), num_ranks](
             const std::vector<Program>& programs,
             const MemoryPlan& plan) -> std::unique_ptr<Executor> {
    std::vector<std::unique_ptr<Executor>> ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
      ranks.push_back(make_one(programs, plan));
    }
    return std::make_unique<RanksAtOnce>(std::move(ranks));
  };
}

}  // namespace braid
