#include "comm/rendezvous.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/errors.h"
#include "comm/answers.h"
#include "comm/transport.h"

namespace braid {
namespace {

/// The state that all ranks share.
struct Board {
  explicit Board(int size) : num_ranks(size) {}

  const int num_ranks;
  Answers answers;
  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::map<std::string, std::string, std::less<>> values;
  std::optional<std::string> reason;  // of the abort
};

class InProcessRendezvous final : public Rendezvous {
 public:
  InProcessRendezvous(std::shared_ptr<Board> board, int rank, int64_t timeout_ns)
      : board_(std::move(board)), rank_(rank), timeout_(timeout_ns) {}

  void put(std::string_view key, std::string value) override {
    const std::scoped_lock lock(board_->mutex);
    const bool is_new = board_->values.emplace(key, std::move(value)).second;
    check(is_new, "rank {} puts a second value under {}", rank_, key);
    board_->changed.notify_all();
  }

  std::string get(std::string_view key) override {
    std::unique_lock lock(board_->mutex);
    auto found = board_->values.end();
    const bool in_time = board_->changed.wait_for(lock, timeout_, [&] {
      found = board_->values.find(key);
      return found != board_->values.end() || board_->reason;
    });
    if (found != board_->values.end()) {
      return found->second;
    }
    if (in_time) {
      throw AbortedError(*board_->reason);
    }
    throw_device_error("rank {} waited {:.3g} s for {}", rank_,
                       std::chrono::duration<double>(timeout_).count(), key);
  }

  void abort(const std::string& reason) override {
    const std::scoped_lock lock(board_->mutex);
    board_->reason = board_->reason ? board_->reason : reason;
    board_->changed.notify_all();
  }

  std::optional<std::string> aborted() const override {
    const std::scoped_lock lock(board_->mutex);
    return board_->reason;
  }

  void set_answer(std::string_view question, std::function<std::string()> answer) override {
    board_->answers.set(rank_, question, std::move(answer));
  }

  std::map<int, std::string> ask_others(std::string_view question,
                                        std::chrono::nanoseconds /*patience*/) override {
    std::map<int, std::string> said;
    for (int rank = 0; rank < board_->num_ranks; ++rank) {
      if (const auto answer = rank != rank_ ? board_->answers.of(rank, question) : std::nullopt) {
        said.emplace(rank, *answer);
      }
    }
    return said;
  }

 private:
  std::shared_ptr<Board> board_;
  int rank_;
  std::chrono::nanoseconds timeout_;
};

/// The first place does not change its keys, because they appear in messages.
class Place final : public Rendezvous {
 public:
  Place(Rendezvous& whole, int64_t number)
      : whole_(whole), mark_(number == 0 ? "" : fmt::format(" (place {})", number + 1)) {}

  void put(std::string_view key, std::string value) override {
    whole_.put(marked(key), std::move(value));
  }
  std::string get(std::string_view key) override { return whole_.get(marked(key)); }
  void abort(const std::string& reason) override { whole_.abort(reason); }
  std::optional<std::string> aborted() const override { return whole_.aborted(); }
  void set_answer(std::string_view question, std::function<std::string()> answer) override {
    whole_.set_answer(marked(question), std::move(answer));
  }
  std::map<int, std::string> ask_others(std::string_view question,
                                        std::chrono::nanoseconds patience) override {
    return whole_.ask_others(marked(question), patience);
  }

 private:
  std::string marked(std::string_view key) const { return std::string(key) + mark_; }

  Rendezvous& whole_;
  std::string mark_;
};

/// `get` with a longer timeout: work before a barrier may take one rank longer than another.
std::string get_patiently(Rendezvous& rendezvous, const std::string& key) {
  constexpr int kTimeouts = 10;
  for (int timeout = 1;; ++timeout) {
    try {
      return rendezvous.get(key);
    } catch (const AbortedError&) {
      throw;
    } catch (const DeviceError&) {
      if (timeout == kTimeouts) {
        throw;
      }
    }
  }
}

}  // namespace

std::unique_ptr<Rendezvous> open_place(Rendezvous& whole) {
  return std::make_unique<Place>(whole, whole.next_number());
}

/// Rank 0 checks who has arrived, so that there are two messages per rank.
void barrier(Rendezvous& rendezvous, std::string_view name, int rank, int num_ranks) {
  const std::string all = fmt::format("all ranks at {}", name);
  const auto one = [&](int which) { return fmt::format("rank {} at {}", which, name); };
  if (rank > 0) {
    rendezvous.put(one(rank), "");
    get_patiently(rendezvous, all);
    return;
  }
  for (int other = 1; other < num_ranks; ++other) {
    get_patiently(rendezvous, one(other));
  }
  rendezvous.put(all, "");
}

std::vector<std::unique_ptr<Rendezvous>> make_in_process_rendezvous(int num_ranks,
                                                                    int64_t timeout_ns) {
  const auto board = std::make_shared<Board>(num_ranks);
  std::vector<std::unique_ptr<Rendezvous>> ends;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ends.push_back(std::make_unique<InProcessRendezvous>(board, rank, timeout_ns));
  }
  return ends;
}

}  // namespace braid
