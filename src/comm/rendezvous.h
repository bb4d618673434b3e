#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

/// One rank's end of a key-value store that the ranks of a run share. Ranks use it to exchange
/// small values before other communication works (IDs of communicators), and to report that a rank
/// has failed. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Stores `value` under `key` for all ranks. Throws InternalError if the key already has a value.
  virtual void put(std::string_view key, std::string value) = 0;

  /// Waits until a rank has put a value under `key`, and returns it. Throws AbortedError
  /// (comm/transport.h) if the run was aborted, and DeviceError "... waited 60 s for KEY" after the
  /// timeout.
  virtual std::string get(std::string_view key) = 0;

  /// Reports that a rank has failed. The first reason stays.
  virtual void abort(const std::string& reason) = 0;
  /// The reason of the abort; nullopt if no rank has failed.
  virtual std::optional<std::string> aborted() const = 0;

  /// Sets the function that answers `question` from other ranks. An empty function removes the
  /// answer, and waits for a running call to return. Any thread may call the function; it must
  /// return soon, and must not use the rendezvous.
  virtual void set_answer(std::string_view question, std::function<std::string()> answer) = 0;
  /// The answers of the other ranks, by rank. Leaves out ranks that have no answer or do not give
  /// it within `patience`: a rank whose process is stopped, or all ranks once the run was aborted.
  virtual std::map<int, std::string> ask_others(std::string_view question,
                                                std::chrono::nanoseconds patience) = 0;

  /// The number of earlier calls of this function on this end. If ranks do something together in
  /// one order, it has the same number on all of them.
  int64_t next_number() { return next_number_++; }

 private:
  std::atomic<int64_t> next_number_{0};
};

/// Sets an answer of this rank for the lifetime of the object.
class StandingAnswer {
 public:
  /// `rendezvous` must outlive it.
  StandingAnswer(Rendezvous& rendezvous, std::string question, std::function<std::string()> answer)
      : rendezvous_(rendezvous), question_(std::move(question)) {
    rendezvous_.set_answer(question_, std::move(answer));
  }
  ~StandingAnswer() { rendezvous_.set_answer(question_, {}); }
  StandingAnswer(const StandingAnswer&) = delete;
  StandingAnswer& operator=(const StandingAnswer&) = delete;

 private:
  Rendezvous& rendezvous_;
  std::string question_;
};

/// A rendezvous of the same ranks with its own namespace of keys, separate from `whole` and from
/// other places; an abort applies to all of them. The n-th place that each rank opens is the same
/// place. `whole` must outlive it.
std::unique_ptr<Rendezvous> open_place(Rendezvous& whole);

/// Waits until all `num_ranks` ranks have called it. Throws as `get` does, but only after ten
/// timeouts. Use each `name` once per place.
void barrier(Rendezvous& rendezvous, std::string_view name, int rank, int num_ranks);

/// For ranks that are threads of one process: element r is rank r's end.
std::vector<std::unique_ptr<Rendezvous>> make_in_process_rendezvous(int num_ranks,
                                                                    int64_t timeout_ns);

}  // namespace braid
