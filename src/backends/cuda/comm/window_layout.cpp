#include "backends/cuda/comm/window_layout.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include "base/errors.h"

namespace braid {
namespace {

/// FNV-1a (Fowler, Noll, Vo) over numbers.
class Digest {
 public:
  void add(int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash_ = (hash_ ^ (static_cast<uint64_t>(number) >> shift & 0xFF)) * 0x100000001B3ull;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325ull;
};

/// The places of the operands of a communicator's calls on this rank.
struct Layout {
  std::set<size_t> used;  // indices of memory
  bool is_inside = true;  // all operands are in the memory
  Digest offsets;

  Layout(const CommunicatorKey& key, std::span<const Program> programs,
         const OperandMemory& operands) {
    for (size_t i = 0; i < programs.size(); ++i) {
      const Program& program = programs[i];
      std::vector<std::optional<bool>> is_of_key(program.specs.size());  // few specs, many tasks
      for (size_t task = 0; task < program.tasks.size(); ++task) {
        const Task& of = program.tasks[task];
        std::optional<bool>& known = is_of_key[of.spec.index()];
        known = known.has_value() ? *known : communicator_key(program, of) == key;
        for (size_t k = 0; *known && k < program.spec(of).operands.size(); ++k) {
          add(operands.memory, operands.address(i, TaskId(task), k));
        }
      }
    }
  }

  /// The text that other ranks compare: one word.
  std::string text(const OperandMemory& operands) const {
    std::string text = fmt::format("{:016x}", offsets.value());
    for (const size_t part : used) {
      text += fmt::format(",{}:{}", part, operands.memory[part].size_bytes);
    }
    return text;
  }

 private:
  void add(std::span<const SharedMemory> memory, const std::byte* address) {
    const auto found = std::ranges::find_if(memory, [&](const SharedMemory& it) {
      return it.data <= address && address < it.data + it.size_bytes;
    });
    is_inside = is_inside && found != memory.end();
    if (found != memory.end()) {
      const auto part = static_cast<size_t>(found - memory.begin());
      used.insert(part);
      offsets.add(static_cast<int64_t>(part));
      offsets.add(address - found->data);
    }
  }
};

/// What a rank publishes for the others: its layout after '=', or its reason against windows.
constexpr char kLayoutMark = '=';

/// The first reason in the order of members; empty if all layouts are equal.
std::string compare(const CommunicatorKey& key, const std::string& own, int own_rank,
                    Rendezvous& rendezvous) {
  const auto name = [&](int rank) {
    return fmt::format("windows of {} at rank {}", describe_key(key), rank);
  };
  rendezvous.put(name(own_rank), own);
  std::string first;
  std::string fault;
  for (const int rank : key.ranks) {
    const std::string said = rank == own_rank ? own : rendezvous.get(name(rank));
    first = first.empty() ? said : first;
    if (!fault.empty()) {
      continue;  // reads the rest, so that a failed rank is noticed here
    }
    if (said.front() != kLayoutMark) {
      fault = fmt::format("rank {}: {}", rank, said);
    } else if (said != first) {
      fault = fmt::format("operands lie elsewhere in the memory of rank {} than in that of rank {}",
                          rank, key.ranks.front());
    }
  }
  return fault;
}

}  // namespace

WindowLayout agree_on_windows(const CommunicatorKey& key, std::span<const Program> programs,
                              const OperandMemory& operands, const std::string& why_not,
                              Rendezvous& rendezvous) {
  const Layout layout(key, programs, operands);
  const std::string own = !why_not.empty()   ? why_not
                          : layout.is_inside ? kLayoutMark + layout.text(operands)
                                             : "operands are in other memory";
  return {.memory = {layout.used.begin(), layout.used.end()},
          .why_not = compare(key, own, programs.front().rank, rendezvous)};
}

}  // namespace braid
