#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/executor.h"
#include "comm/process_group.h"
#include "plan/run_plan.h"
#include "state/replicas.h"

namespace braid {

/// Copies of the same elements with other bits.
struct ReplicaDifference {
  /// For people; empty if all copies are equal: "rank 3 holds other bits of
  /// layers.1.mlp.fc1.weight (weights) than rank 0, rank 1, rank 2".
  std::string text;
  std::vector<size_t>
      ranks;  ///< that the text begins with: the minority, or all without a majority

  bool found() const { return !text.empty(); }
};

/// Compares the elements of the state that several ranks hold (state/replicas.h). Each rank hashes
/// its copies where they are and sends one hash per set of ranks; only if these differ, one per
/// tensor.
class ReplicaCheck {
 public:
  /// `executors` by rank; null for ranks of other processes. `processes`: with a process per rank;
  /// null if this process has all ranks. All must outlive it.
  ReplicaCheck(const RunPlan& plan, std::vector<Executor*> executors, ProcessGroup* processes);

  bool has_replicas() const { return !sets_.empty(); }
  /// The first difference of two copies, if any; the same on all processes, which all call it with
  /// no step in flight.
  ReplicaDifference difference();

 private:
  /// A tensor of a set, as a rank of this process holds it.
  using Places = std::vector<BufferElems>;
  struct OwnRank {
    size_t rank = 0;
    std::vector<std::vector<Places>> tensors;  // by set and tensor; empty if the rank is in no such
  };
  /// Hashes to compare: each that of several ranks.
  struct Row {
    size_t set = 0;
    size_t tensor = 0;
    std::vector<uint64_t> hashes;  // by position in the set
  };

  std::vector<std::string> exchange(std::string_view name,
                                    const std::function<std::string(const OwnRank&)>& bytes_of);
  bool is_member(size_t set, size_t rank) const;
  std::vector<size_t> differing_sets();
  std::vector<Row> differing_tensors(const std::vector<size_t>& sets);
  ReplicaDifference describe(const Row& row) const;
  std::string names_of(const std::vector<size_t>& ranks) const;

  StateMap map_;
  const RunPlan& plan_;
  std::vector<Executor*> executors_;
  ProcessGroup* processes_;
  std::vector<ReplicaSet> sets_;
  std::vector<OwnRank> own_;
  std::vector<std::string> hosts_;  // by rank, once a difference was found; empty: one process
};

}  // namespace braid
