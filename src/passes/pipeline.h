#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "passes/pass.h"
#include "passes/pipeline_options.h"

namespace braid {

/// All passes in the order in which they must run, including those of `add_pass`:
///   1. passes that remove tasks
///   2. passes that decide what is kept from forward to backward
///   3. passes that order tasks
///   4. passes that place tasks on streams
///   5. passes that fuse two tasks into one
///   6. the pass that turns dependencies between streams into events
///   7. passes over all ranks at once
std::vector<Pass> default_pipeline(const PipelineOptions& options = {});

/// The passes of a list that run over one rank, and those that run over all ranks.
std::vector<Pass> rank_passes(std::vector<Pass> passes);
std::vector<Pass> all_ranks_passes(std::vector<Pass> passes);

/// Makes a pass from its options.
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

/// Adds a pass of a program that links braid next to the pass named `neighbour`. It applies to
/// every run that this process plans afterwards: a search, the checks of other ranks and a
/// simulation plan the run again and must use the same list. Call it in every process of a run,
/// before the run is planned. The added pass is treated like any other: it is timed, verified,
/// dumped, listed and can be disabled by name. If it only overlaps, mode "off" disables it and a
/// search tries it. The strings that it refers to must outlive it. Throws ConfigError if no pass
/// has the neighbour's name, if the new name is taken, or if a pass over all ranks would come
/// before a pass over one rank.
[[nodiscard]] AddedPass add_pass(const MakePass& make, PassSide side, std::string_view neighbour);

}  // namespace braid
