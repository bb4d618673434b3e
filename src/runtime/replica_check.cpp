#include "runtime/replica_check.h"

#include <algorithm>
#include <map>
#include <utility>

#include "backends/run_ranks.h"
#include "base/byte_fields.h"
#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

bool all_equal(const std::vector<uint64_t>& hashes) {
  return std::ranges::all_of(hashes, [&](uint64_t hash) { return hash == hashes.front(); });
}

/// The hash that more than half of them are, if any.
const uint64_t* majority(const std::vector<uint64_t>& hashes) {
  const auto found = std::ranges::find_if(hashes, [&](uint64_t hash) {
    return 2 * static_cast<size_t>(std::ranges::count(hashes, hash)) > hashes.size();
  });
  return found == hashes.end() ? nullptr : &*found;
}

}  // namespace

ReplicaCheck::ReplicaCheck(const RunPlan& plan, std::vector<Executor*> executors,
                           ProcessGroup* processes)
    : map_(make_state_map(plan, StateCopies::kUpToDate)),
      plan_(plan),
      executors_(std::move(executors)),
      processes_(processes),
      sets_(replica_sets(map_, plan.layout)) {
  for (size_t rank = 0; rank < executors_.size(); ++rank) {
    if (executors_[rank] == nullptr) {
      continue;
    }
    const ReplicaPlaces places(map_, plan.layout, rank);
    OwnRank own{.rank = rank, .tensors = {}};
    for (size_t set = 0; set < sets_.size(); ++set) {
      std::vector<Places>& tensors = own.tensors.emplace_back();
      for (size_t i = 0; is_member(set, rank) && i < sets_[set].tensors.size(); ++i) {
        tensors.push_back(places.of(sets_[set].tensors[i]));
      }
    }
    own_.push_back(std::move(own));
  }
}

bool ReplicaCheck::is_member(size_t set, size_t rank) const {
  return std::ranges::binary_search(sets_[set].ranks, rank);
}

ReplicaDifference ReplicaCheck::difference() {
  const std::vector<size_t> sets = has_replicas() ? differing_sets() : std::vector<size_t>{};
  if (sets.empty()) {
    return {};
  }
  std::vector<Row> rows = differing_tensors(sets);
  if (rows.empty()) {
    return {
        .text = "rank 0 found different hashes of the state of all ranks, and then the same ones",
        .ranks = {0}};
  }
  std::stable_partition(rows.begin(), rows.end(),
                        [](const Row& row) { return majority(row.hashes) != nullptr; });
  ReplicaDifference difference = describe(rows.front());
  if (rows.size() > 1) {
    difference.text += fmt::format(" (and of {} more)", rows.size() - 1);
  }
  return difference;
}

/// Returns bytes by rank, from all processes.
std::vector<std::string> ReplicaCheck::exchange(
    std::string_view name, const std::function<std::string(const OwnRank&)>& bytes_of) {
  std::vector<std::string> bytes(own_.size());
  run_side_by_side(own_.size(), [&](size_t i) { bytes[i] = bytes_of(own_[i]); });
  return processes_ == nullptr ? bytes : processes_->all_gather(name, std::move(bytes.front()));
}

/// One hash for all tensors of a set.
std::vector<size_t> ReplicaCheck::differing_sets() {
  const std::vector<std::string> bytes = exchange("replicas", [&](const OwnRank& own) {
    ByteWriter writer;
    for (size_t set = 0; set < sets_.size(); ++set) {
      if (is_member(set, own.rank)) {
        Places all;
        for (const Places& places : own.tensors[set]) {
          std::ranges::for_each(places,
                                [&](const BufferElems& elems) { append_elems(all, elems); });
        }
        writer.number(executors_[own.rank]->hash(all));
      }
    }
    return writer.take();
  });
  std::vector<ByteReader> readers(bytes.begin(), bytes.end());
  std::vector<size_t> differing;
  for (size_t set = 0; set < sets_.size(); ++set) {
    std::vector<uint64_t> hashes;
    for (const size_t rank : sets_[set].ranks) {
      hashes.push_back(readers.at(rank).number<uint64_t>());
    }
    if (!all_equal(hashes)) {
      differing.push_back(set);
    }
  }
  return differing;
}

/// One hash per tensor of these sets.
std::vector<ReplicaCheck::Row> ReplicaCheck::differing_tensors(const std::vector<size_t>& sets) {
  const std::vector<std::string> bytes = exchange("replicated tensors", [&](const OwnRank& own) {
    ByteWriter writer;
    writer.text(processes_ == nullptr ? "" : processes_->host());
    for (const size_t set : sets) {
      for (const Places& places : own.tensors[set]) {
        writer.number(executors_[own.rank]->hash(places));
      }
    }
    return writer.take();
  });
  std::vector<ByteReader> readers(bytes.begin(), bytes.end());
  hosts_.clear();
  for (ByteReader& reader : readers) {
    hosts_.push_back(reader.text());
  }
  std::vector<Row> differing;
  for (const size_t set : sets) {
    for (size_t tensor = 0; tensor < sets_[set].tensors.size(); ++tensor) {
      Row row{.set = set, .tensor = tensor, .hashes = {}};
      for (const size_t rank : sets_[set].ranks) {
        row.hashes.push_back(readers.at(rank).number<uint64_t>());
      }
      if (!all_equal(row.hashes)) {
        differing.push_back(std::move(row));
      }
    }
  }
  return differing;
}

/// "rank 0 (node1), rank 1 (node1), and 6 others"
std::string ReplicaCheck::names_of(const std::vector<size_t>& ranks) const {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    const std::string& host = hosts_[ranks[i]];
    names.push_back(host.empty() ? fmt::format("rank {}", ranks[i])
                                 : fmt::format("rank {} ({})", ranks[i], host));
  }
  if (ranks.size() > kShown) {
    names.push_back(fmt::format("and {} others", ranks.size() - kShown));
  }
  return join(names, ", ");
}

ReplicaDifference ReplicaCheck::describe(const Row& row) const {
  const ReplicaSet& set = sets_[row.set];
  const std::string tensor = describe_tensor(set.tensors[row.tensor], plan_.layout);
  const uint64_t* const right = majority(row.hashes);
  if (right == nullptr) {
    return {.text = fmt::format("{} hold different bits of {}", names_of(set.ranks), tensor),
            .ranks = set.ranks};
  }
  std::vector<size_t> agreeing;
  std::vector<size_t> others;
  for (size_t i = 0; i < set.ranks.size(); ++i) {
    (row.hashes[i] == *right ? agreeing : others).push_back(set.ranks[i]);
  }
  return {.text = fmt::format("{} {} other bits of {} than {}", names_of(others),
                              others.size() == 1 ? "holds" : "hold", tensor, names_of(agreeing)),
          .ranks = others};
}

}  // namespace braid
