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

/// Where the ranks of a run leave each other a few bytes before they can communicate otherwise
/// (names of communicators), and tell each other that one of them has failed. One rank's end of it;
/// may be called by any thread.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Leaves `value` under `key` for all ranks. Throws InternalError if the key has a value already.
  virtual void put(std::string_view key, std::string value) = 0;

  /// What was put under `key`, by any rank: waits for it. Throws AbortedError (comm/transport.h) if
  /// the run was aborted, DeviceError "... waited 60 s for KEY" after the timeout.
  virtual std::string get(std::string_view key) = 0;

  /// A rank has failed. The first reason stays.
  virtual void abort(const std::string& reason) = 0;
  /// The reason; nullopt as long as no rank has failed.
  virtual std::optional<std::string> aborted() const = 0;

  /// What this rank says to others that ask `question`, until it is replaced; an empty function
  /// ends it, when a call that runs has returned. It is called by any thread, must return soon, and
  /// must not use the rendezvous.
  virtual void set_answer(std::string_view question, std::function<std::string()> answer) = 0;
  /// What the other ranks answer, by rank. Those that have no answer are not there, nor those that
  /// do not give it within `patience`: a rank whose process is stopped, or all of them once the run
  /// was aborted.
  virtual std::map<int, std::string> ask_others(std::string_view question,
                                                std::chrono::nanoseconds patience) = 0;

  /// How often this end was asked before: what ranks do together in one order has one number on all
  /// of them.
  int64_t next_number() { return next_number_++; }

 private:
  std::atomic<int64_t> next_number_{0};
};

/// An answer of this rank for as long as it lives.
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

/// The same ranks at a place of their own: what is left there is not met by what is left at `whole`
/// or at another place, whatever its keys; an abort is one of all. Ranks that open places in one
/// order meet at the same ones. `whole` must outlive it.
std::unique_ptr<Rendezvous> open_place(Rendezvous& whole);

/// Returns when all of `num_ranks` ranks have come here, or throws what `get` does; one that is ten
/// timeouts late is missed. Once per `name` and place.
void barrier(Rendezvous& rendezvous, std::string_view name, int rank, int num_ranks);

/// Between ranks that are threads of one process: element r is rank r's end.
std::vector<std::unique_ptr<Rendezvous>> make_in_process_rendezvous(int num_ranks,
                                                                    int64_t timeout_ns);

}  // namespace braid
