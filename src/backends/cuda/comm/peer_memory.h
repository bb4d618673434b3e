#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/device_arena.h"
#include "comm/rendezvous.h"

namespace braid {

/// cudaMalloc of whole pages: smaller blocks share one, and CUDA IPC maps pages.
const Allocator& peer_memory_allocator();

/// An allocation of one rank (`peer_memory_allocator`) that others may write.
struct SharedMemory {
  std::byte* data = nullptr;
  int64_t size_bytes = 0;  ///< 0: there is none
};

/// Where the memory of other ranks is, as this one's device addresses it: of ranks in this process
/// their own addresses, with peer access enabled; of other processes of this host mappings of their
/// allocations (CUDA IPC), also where they are on one device, which end with this object. Memory of
/// another host cannot be reached.
///
/// All ranks construct theirs at the same time, with the device current. Each waits for the others
/// over the rendezvous; what it throws is that of Rendezvous::get, and DeviceError.
class PeerMemory {
 public:
  struct Own {
    std::string what;  ///< for keys of the rendezvous: a second object there has another one
    int rank = 0;
    std::vector<SharedMemory> memory;  ///< as many on each rank
    std::string note;                  ///< for the others: see `note`
    std::string fault;                 ///< why this rank and others must not share memory
  };

  /// `peers`: the ranks to look at, of which each looks at this one, too. `rendezvous` must outlive
  /// the construction.
  PeerMemory(const Own& own, std::span<const int> peers, Rendezvous& rendezvous);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// What the rank has left for the others. Also this rank's own.
  const std::string& note(int rank) const;

  /// Address of a rank's memory number `index` here; null where it has none, or cannot be reached.
  std::byte* data(int rank, size_t index) const;

  /// Why ranks `from` and `to` (this rank, or one of its peers) cannot reach each other; empty if
  /// they can. The same answer on every rank.
  std::string why_apart(int from, int to) const;

 private:
  struct Peer;
  void open(int rank, Peer& peer);

  int rank_;
  int device_ = 0;
  std::map<int, std::unique_ptr<Peer>> peers_;  // this rank's own, too
};

}  // namespace braid
