#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "passes/pass.h"
#include "passes/pipeline_options.h"

namespace braid {

/// All passes, in the order in which they must run: first what removes tasks, then what decides
/// what is kept from forward to backward, then what orders tasks, then what places them on streams,
/// then what makes one task of two, then what turns the dependencies between streams into events,
/// and last what looks at all ranks at once. With those of `add_pass`, where they belong.
std::vector<Pass> default_pipeline(const PipelineOptions& options = {});

/// Those of a list that run over one rank, and those that run over all.
std::vector<Pass> rank_passes(std::vector<Pass> passes);
std::vector<Pass> all_ranks_passes(std::vector<Pass> passes);

/// Makes a pass with its options.
using MakePass = std::function<Pass(const PipelineOptions&)>;

enum class PassSide : uint8_t { kBefore, kAfter };

/// Keeps a pass of `add_pass` in the list until it is destroyed.
class AddedPass {
 public:
  explicit AddedPass(uint64_t id) : id_(id) {}
  AddedPass(AddedPass&& other) noexcept : id_(std::exchange(other.id_, 0)) {}
  AddedPass& operator=(AddedPass&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  AddedPass(const AddedPass&) = delete;
  AddedPass& operator=(const AddedPass&) = delete;
  ~AddedPass();

 private:
  uint64_t id_;  // 0: none
};

/// Puts a pass of a program that links braid beside the one called `neighbour`, for every run that
/// this process plans from then on: for the whole process, because a search, the checks of other
/// ranks and a simulation each plan the run again, and must see the same list. Call it before a run
/// is planned, in every process of a run. The pass is then one as any other: timed, verified,
/// dumped, listed, disabled by name and, if it only overlaps, off in mode "off" and tried by a
/// search. Names that it refers to must outlive it. Throws ConfigError if there is no such
/// neighbour, if the name is taken, or if a pass over all ranks would come in front of one that is
/// not, or the other way round.
[[nodiscard]] AddedPass add_pass(const MakePass& make, PassSide side, std::string_view neighbour);

}  // namespace braid
