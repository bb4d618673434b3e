#include "backends/cuda/comm/peer_memory.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <random>
#include <sstream>
#include <utility>

#include "backends/cuda/cuda_error.h"
#include "base/errors.h"
#include "base/host_name.h"

namespace braid {
namespace {

int64_t whole_pages(int64_t size_bytes) {
  constexpr int64_t kPageBytes = int64_t{2} << 20;
  return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

/// Identifies this process: process numbers may be equal in different containers.
const std::string& process_name() {
  static const std::string kName = [] {
    std::random_device random;
    return fmt::format("{}.{:08x}{:08x}", getpid(), random(), random());
  }();
  return kName;
}

std::string to_hex(const cudaIpcMemHandle_t& handle) {
  std::string text;
  for (const char byte : handle.reserved) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

cudaIpcMemHandle_t from_hex(const std::string& text) {
  cudaIpcMemHandle_t handle{};
  check(text.size() == 2 * sizeof handle.reserved, "a memory handle of {} digits", text.size());
  for (size_t i = 0; i < sizeof handle.reserved; ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

/// "-" if the driver has no handle for it: then only this process can access the memory.
std::string handle_of(const SharedMemory& memory) {
  cudaIpcMemHandle_t handle{};
  if (memory.size_bytes == 0 || cudaIpcGetMemHandle(&handle, memory.data) != cudaSuccess) {
    ignore_error(cudaGetLastError());
    return "-";
  }
  return to_hex(handle);
}

/// One line of words, then the note.
std::string describe(const PeerMemory::Own& own, int device) {
  std::string text =
      fmt::format("{} {} {} {}", host_name(), process_name(), device, own.memory.size());
  for (const SharedMemory& memory : own.memory) {
    text += fmt::format(" {} {} {}", reinterpret_cast<uintptr_t>(memory.data), memory.size_bytes,
                        handle_of(memory));
  }
  return text + "\n" + own.note;
}

}  // namespace

const Allocator& peer_memory_allocator() {
  static constexpr Allocator kAllocator{
      .allocate =
          [](int64_t size_bytes, const std::string& what) {
            return cuda_allocator().allocate(whole_pages(size_bytes), what);
          },
      .release =
          [](std::byte* data, int64_t size_bytes) {
            cuda_allocator().release(data, whole_pages(size_bytes));
          }};
  return kAllocator;
}

struct PeerMemory::Peer {
  struct Part {
    uintptr_t address = 0;  // in its process
    int64_t size_bytes = 0;
    std::string handle;
    std::byte* here = nullptr;
    bool is_mapped = false;
  };
  std::string host;
  std::string process;
  int device = 0;
  std::vector<Part> parts;
  std::string note;
  std::map<int, std::string> faults;  // by rank that it cannot access

  explicit Peer(const std::string& text) {
    const size_t line = text.find('\n');
    check(line != std::string::npos, "a rank describes its memory in no line");
    std::istringstream words(text.substr(0, line));
    size_t num_parts = 0;
    words >> host >> process >> device >> num_parts;
    for (size_t i = 0; i < num_parts && words; ++i) {
      Part& part = parts.emplace_back();
      words >> part.address >> part.size_bytes >> part.handle;
    }
    check(!words.fail(), "a rank describes its memory as {}", text.substr(0, line));
    note = text.substr(line + 1);
  }

  ~Peer() {
    for (const Part& part : parts) {
      if (part.is_mapped) {
        ignore_error(cudaIpcCloseMemHandle(part.here));
      }
    }
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
};

PeerMemory::PeerMemory(const Own& own, std::span<const int> peers, Rendezvous& rendezvous)
    : rank_(own.rank) {
  BRAID_CUDA_CHECK(cudaGetDevice(&device_));
  const auto key = [&](int rank) { return fmt::format("{} of rank {}", own.what, rank); };
  const auto answer = [&](int rank) {
    return fmt::format("{} that rank {} cannot reach", own.what, rank);
  };
  rendezvous.put(key(rank_), describe(own, device_));
  peers_.emplace(rank_, std::make_unique<Peer>(rendezvous.get(key(rank_))));
  for (const int rank : peers) {
    peers_.emplace(rank, std::make_unique<Peer>(rendezvous.get(key(rank))));
  }
  std::string faults;
  for (auto& [rank, peer] : peers_) {
    if (own.fault.empty() || rank == rank_) {
      open(rank, *peer);
    } else {
      peers_.at(rank_)->faults[rank] = own.fault;
    }
    if (const auto fault = peers_.at(rank_)->faults.find(rank);
        fault != peers_.at(rank_)->faults.end()) {
      faults += fmt::format("{} {}\n", rank, fault->second);
    }
  }
  rendezvous.put(answer(rank_), faults);
  for (const int rank : peers) {
    std::istringstream lines(rendezvous.get(answer(rank)));
    int other = 0;
    for (std::string line; lines >> other && std::getline(lines >> std::ws, line);) {
      peers_.at(rank)->faults[other] = line;
    }
  }
}

PeerMemory::~PeerMemory() = default;

/// Maps the peer's memory; a failure is recorded as a fault of this rank.
void PeerMemory::open(int rank, Peer& peer) {
  const Peer& own = *peers_.at(rank_);
  std::string& fault = peers_.at(rank_)->faults[rank];
  if (peer.host != own.host) {
    fault = fmt::format("rank {} is on another host than rank {}", rank, rank_);
    return;
  }
  const bool is_near = peer.process == own.process;
  if (is_near && peer.device != device_) {
    int can = 0;
    BRAID_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, device_, peer.device));
    const cudaError_t status =
        can == 0 ? cudaErrorPeerAccessUnsupported : cudaDeviceEnablePeerAccess(peer.device, 0);
    if (status != cudaSuccess && status != cudaErrorPeerAccessAlreadyEnabled) {
      ignore_error(cudaGetLastError());
      fault = fmt::format("GPU {} has no access to GPU {}: {}", device_, peer.device,
                          cudaGetErrorString(status));
      return;
    }
    ignore_error(cudaGetLastError());
  }
  for (Peer::Part& part : peer.parts) {
    if (part.size_bytes == 0) {
      continue;
    }
    if (is_near) {
      part.here = reinterpret_cast<std::byte*>(part.address);
      continue;
    }
    void* mapped = nullptr;
    const cudaError_t status =
        part.handle == "-"
            ? cudaErrorNotSupported
            : cudaIpcOpenMemHandle(&mapped, from_hex(part.handle), cudaIpcMemLazyEnablePeerAccess);
    if (status != cudaSuccess) {
      ignore_error(cudaGetLastError());
      fault = fmt::format("memory of rank {} cannot be mapped by rank {}: {}", rank, rank_,
                          cudaGetErrorString(status));
      return;
    }
    part.here = static_cast<std::byte*>(mapped);
    part.is_mapped = true;
  }
  peers_.at(rank_)->faults.erase(rank);
}

const std::string& PeerMemory::note(int rank) const {
  return peers_.at(rank)->note;
}

std::byte* PeerMemory::data(int rank, size_t index) const {
  return peers_.at(rank)->parts.at(index).here;
}

std::string PeerMemory::why_apart(int from, int to) const {
  for (const auto& [a, b] : {std::pair(from, to), std::pair(to, from)}) {
    const auto& faults = peers_.at(a)->faults;
    if (const auto fault = faults.find(b); fault != faults.end()) {
      return fault->second;
    }
  }
  return "";
}

}  // namespace braid
