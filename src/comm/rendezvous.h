#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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

  /// How often this end was asked before: what ranks do together in one order has one number on all
  /// of them.
  int64_t next_number() { return next_number_++; }

 private:
  std::atomic<int64_t> next_number_{0};
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
