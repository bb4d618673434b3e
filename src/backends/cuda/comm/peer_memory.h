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

/// cudaMalloc of whole pages: smaller blocks share a page, and CUDA IPC maps pages.
const Allocator& peer_memory_allocator();

/// An allocation of one rank (`peer_memory_allocator`) to which others may write.
struct SharedMemory {
  std::byte* data = nullptr;
  int64_t size_bytes = 0;  ///< 0: no memory
};

/// The addresses of other ranks' memory for this rank's device. Ranks in this process: their own
/// addresses, with peer access enabled. Other processes of this host: mappings of their allocations
/// (CUDA IPC), also if they use the same device; the mappings end with this object. Memory of
/// another host is inaccessible.
///
/// All ranks construct theirs at the same time, with the device current. Each waits for the others
/// over the rendezvous. Throws as Rendezvous::get, and DeviceError.
class PeerMemory {
 public:
  struct Own {
    std::string what;  ///< for keys of the rendezvous: each object needs another name
    int rank = 0;
    std::vector<SharedMemory> memory;  ///< the same number on each rank
    std::string note;                  ///< shared with the other ranks: see `note`
    std::string fault;                 ///< why this rank and others must not share memory
  };

  /// `peers`: the ranks to examine; each of them must examine this one, too. `rendezvous` must
  /// outlive the construction.
  PeerMemory(const Own& own, std::span<const int> peers, Rendezvous& rendezvous);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// The note of a rank, including this one.
  const std::string& note(int rank) const;

  /// Address of a rank's memory number `index` for this device; null if there is none, or it is
  /// inaccessible.
  std::byte* data(int rank, size_t index) const;

  /// Why ranks `from` and `to` (this rank, or its peers) cannot access each other's memory; empty
  /// if they can. The same answer on every rank.
  std::string why_apart(int from, int to) const;

 private:
  struct Peer;
  void open(int rank, Peer& peer);

  int rank_;
  int device_ = 0;
  std::map<int, std::unique_ptr<Peer>> peers_;  // including this rank's own
};

}  // namespace braid
