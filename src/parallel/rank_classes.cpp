#include "parallel/rank_classes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

/// Maps vectors to dense integers, in order of first use.
class VectorTable {
 public:
  uint32_t intern(std::vector<uint32_t> key) {
    return ids_.try_emplace(std::move(key), static_cast<uint32_t>(ids_.size())).first->second;
  }
  uint32_t size() const { return static_cast<uint32_t>(ids_.size()); }

 private:
  std::map<std::vector<uint32_t>, uint32_t> ids_;
};

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr size_t kMaxShown = 16;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxShown); ++i) {
    shown.push_back(std::to_string(ranks[i]));
  }
  return join(shown, ",") + (ranks.size() > kMaxShown ? ",..." : "");
}

class RankClassifier {
 public:
  RankClassifier(const RankPrograms& ranks, const std::vector<ProgramCalls>& calls,
                 std::vector<std::string>& faults, const GroupColor& color)
      : ranks_(ranks),
        calls_(calls),
        faults_(faults),
        color_(color),
        groups_of_(ranks.program_of.size()) {
    name_programs_groups();
  }

  RankClasses run() {
    find_groups();
    check_members();
    if (!faults_.empty()) {
      return {};
    }
    color_groups();
    refine();
    return result();
  }

 private:
  struct GroupFacts {
    uint32_t name = 0;
    uint32_t color = 0;
    std::vector<int> ranks;
  };

  size_t num_ranks() const { return ranks_.program_of.size(); }
  const ProgramCalls& calls_of(size_t rank) const { return calls_[ranks_.program_of[rank]]; }

  void name_programs_groups() {
    for (const ProgramCalls& program : calls_) {
      std::vector<uint32_t>& names = names_of_.emplace_back();
      for (const ProgramCalls::UsedGroup& use : program.groups) {
        names.push_back(names_.intern(program.program->groups[use.group.index()].name));
        if (std::ranges::count(names, names.back()) > 1) {
          faults_.push_back(
              fmt::format("program of rank {}: two groups with calls have the name {}",
                          program.program->rank, names_[names.back()]));
        }
      }
    }
  }

  void find_groups() {
    for (size_t rank = 0; rank < num_ranks(); ++rank) {
      const ProgramCalls& program = calls_of(rank);
      for (size_t use = 0; use < program.groups.size(); ++use) {
        const GroupId group = program.groups[use].group;
        const std::vector<int>& listed = program.program->groups[group.index()].ranks;
        if (is_listed(rank, use, listed.size())) {
          continue;
        }
        if (ranks_.ranks_of_group) {
          add_group(rank, use, ranks_.ranks_of_group(static_cast<int>(rank), group), listed.size());
        } else {
          add_group(rank, use, listed, listed.size());
        }
      }
    }
  }

  /// True if another member has listed the group. `check_members` checks that this rank is in it.
  bool is_listed(size_t rank, size_t use, size_t expected_size) {
    if (!ranks_.first_of_group) {
      return false;
    }
    const int first =
        ranks_.first_of_group(static_cast<int>(rank), calls_of(rank).groups[use].group);
    const auto found = by_first_.find({names_of_[ranks_.program_of[rank]][use], first});
    if (found == by_first_.end() || groups_[found->second].ranks.size() != expected_size) {
      return false;
    }
    groups_of_[rank].push_back(found->second);
    return true;
  }

  void add_group(size_t rank, size_t use, const std::vector<int>& members, size_t expected_size) {
    const uint32_t name = names_of_[ranks_.program_of[rank]][use];
    groups_of_[rank].push_back(0);
    if (const std::string fault = group_fault(rank, members, expected_size); !fault.empty()) {
      faults_.push_back(fmt::format("rank {}: group {} has ranks {}: {}", rank, names_[name],
                                    list_ranks(members), fault));
      return;
    }
    const auto [found, is_new] = by_first_.try_emplace(std::pair(name, members.front()),
                                                       static_cast<uint32_t>(groups_.size()));
    groups_of_[rank].back() = found->second;
    if (is_new) {
      groups_.push_back({.name = name, .color = 0, .ranks = members});
      check_distinct(rank, groups_.back());
    } else if (groups_[found->second].ranks != members) {
      faults_.push_back(fmt::format("rank {}: group {} has ranks {}, but another rank says {}",
                                    rank, names_[name], list_ranks(members),
                                    list_ranks(groups_[found->second].ranks)));
    }
  }

  std::string group_fault(size_t rank, const std::vector<int>& members,
                          size_t expected_size) const {
    if (members.size() != expected_size) {
      return fmt::format("{} in the rank's program", expected_size);
    }
    const bool exist = std::ranges::all_of(
        members, [&](int member) { return member >= 0 && member < ranks_.num_ranks(); });
    if (!exist) {
      return fmt::format("there are {} ranks", num_ranks());
    }
    const bool has_rank = std::ranges::find(members, static_cast<int>(rank)) != members.end();
    return has_rank ? "" : "not this one";
  }

  void check_distinct(size_t rank, const GroupFacts& group) {
    std::vector<int> members = group.ranks;
    std::ranges::sort(members);
    if (std::ranges::adjacent_find(members) != members.end()) {
      faults_.push_back(fmt::format("rank {}: group {} has ranks {}: one occurs twice", rank,
                                    names_[group.name], list_ranks(group.ranks)));
    }
  }

  /// All members that communicate in a group with this name must agree on its ranks, and no other
  /// rank may have it.
  void check_members() {
    std::vector<size_t> num_users(groups_.size());
    for (size_t rank = 0; rank < num_ranks() && faults_.empty(); ++rank) {
      for (const uint32_t group : groups_of_[rank]) {
        ++num_users[group];
      }
    }
    for (uint32_t group = 0; group < groups_.size() && faults_.empty(); ++group) {
      check_members_of(group, num_users[group]);
    }
  }

  void check_members_of(uint32_t group, size_t num_users) {
    size_t num_members = 0;
    for (const int member : groups_[group].ranks) {
      const auto rank = static_cast<size_t>(member);
      const auto& names = names_of_[ranks_.program_of[rank]];
      const auto use = std::ranges::find(names, groups_[group].name) - names.begin();
      if (use == std::ssize(names)) {
        continue;
      }
      ++num_members;
      if (groups_of_[rank][static_cast<size_t>(use)] != group) {
        const GroupFacts& other = groups_[groups_of_[rank][static_cast<size_t>(use)]];
        faults_.push_back(fmt::format("group {} has ranks {}, but its member {} says {}",
                                      names_[other.name], list_ranks(groups_[group].ranks), member,
                                      list_ranks(other.ranks)));
      }
    }
    if (num_users != num_members && faults_.empty()) {
      faults_.push_back(fmt::format("group {} has ranks {}, but {} ranks say that they are in it",
                                    names_[groups_[group].name], list_ranks(groups_[group].ranks),
                                    num_users));
    }
  }

  void color_groups() {
    if (color_) {
      VectorTable colors;
      for (GroupFacts& group : groups_) {
        group.color = colors.intern(color_(group.ranks));
      }
    }
  }

  uint32_t position_in(size_t rank, size_t use) const {
    const std::vector<int>& members = groups_[groups_of_[rank][use]].ranks;
    return static_cast<uint32_t>(std::ranges::find(members, static_cast<int>(rank)) -
                                 members.begin());
  }

  /// Assigns a kind to each group from its name, its color and the classes of its members.
  uint32_t find_kinds() {
    VectorTable kinds;
    kind_of_.clear();
    for (const GroupFacts& group : groups_) {
      std::vector<uint32_t> key{group.name, group.color};
      for (const int member : group.ranks) {
        key.push_back(alike_.kind_of[static_cast<size_t>(member)]);
      }
      kind_of_.push_back(kinds.intern(std::move(key)));
    }
    return kinds.size();
  }

  /// Splits classes whose ranks differ in the kinds of their groups, or in their positions in
  /// groups that address members individually.
  void split_classes() {
    std::vector<std::vector<uint32_t>> keys;
    for (size_t rank = 0; rank < num_ranks(); ++rank) {
      std::vector<uint32_t> key{alike_.kind_of[rank]};
      const ProgramCalls& program = calls_of(rank);
      for (size_t use = 0; use < program.groups.size(); ++use) {
        key.push_back(kind_of_[groups_of_[rank][use]]);
        if (program.groups[use].has_messages) {
          key.push_back(position_in(rank, use));
        }
      }
      keys.push_back(std::move(key));
    }
    alike_ = alike_ranks(keys);
  }

  void refine() {
    alike_ = alike_ranks(ranks_.program_of);
    for (bool is_stable = false; !is_stable;) {
      const size_t num_classes = alike_.num_kinds();
      find_kinds();
      split_classes();
      is_stable = alike_.num_kinds() == num_classes;
    }
    num_kinds_ = find_kinds();
  }

  RankClasses result() const {
    RankClasses classes{.ranks = alike_, .classes = {}, .num_group_kinds = num_kinds_};
    for (const int first : alike_.stand_ins) {
      const auto rank = static_cast<size_t>(first);
      RankClass& it = classes.classes.emplace_back();
      it.program = ranks_.program_of[rank];
      for (size_t use = 0; use < groups_of_[rank].size(); ++use) {
        const uint32_t group = groups_of_[rank][use];
        it.groups.push_back({.kind = kind_of_[group],
                             .position = position_in(rank, use),
                             .ranks = groups_[group].ranks});
      }
    }
    return classes;
  }

  const RankPrograms& ranks_;
  const std::vector<ProgramCalls>& calls_;
  std::vector<std::string>& faults_;
  const GroupColor& color_;
  StringTable names_;
  std::vector<std::vector<uint32_t>> names_of_;  // by program and group with calls
  std::vector<GroupFacts> groups_;
  std::map<std::pair<uint32_t, int>, uint32_t> by_first_;  // group by name and first rank
  std::vector<std::vector<uint32_t>> groups_of_;           // by rank and group with calls
  AlikeRanks alike_;                                       // the current classes
  std::vector<uint32_t> kind_of_;                          // by group
  uint32_t num_kinds_ = 0;
};

}  // namespace

RankClasses classify_ranks(const RankPrograms& ranks, const std::vector<ProgramCalls>& calls,
                           std::vector<std::string>& faults, const GroupColor& color) {
  return RankClassifier(ranks, calls, faults, color).run();
}

}  // namespace braid
