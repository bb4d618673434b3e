#include "passes/tensor/bulk_overlap.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "ir/dependencies.h"
#include "ops/op.h"
#include "passes/pipeline_options.h"
#include "passes/rearrange.h"

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

bool is_product(const Program& program, const Task& task) {
  return is_product_or_attention(program.spec(task));
}

/// Tests have programs with ops of their own.
bool is_copy(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  return op != nullptr && op->op_class == OpClass::kCopy;
}

bool is_attention(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  return op != nullptr && op->family == OpFamily::kAttention;
}

/// The name of the product's site with another ending: "qkv_dgrad" -> "qkv_wgrad".
std::string other_site(const std::string& site, const char* suffix) {
  return site.substr(0, site.rfind('_')) + suffix;
}

/// Decides where communication moves to. Tasks are given by their position.
class Moves {
 public:
  Moves(const Program& program, const SiteOverlaps& sites)
      : program_(program),
        sites_(sites),
        dependencies_(build_dependencies(program)),
        in_front_of_(program.tasks.size(), kNone) {}

  /// Moves gathers first: the tasks they move with are then no longer between a dgrad and its call.
  void choose() {
    const auto num_tasks = static_cast<uint32_t>(program_.tasks.size());
    uint32_t product = kNone;  // the previous one, or the piece of it in front of which gathers go
    for (uint32_t task = 0; task < num_tasks; ++task) {
      if (product_part(program_.spec(program_.tasks[task])) == ProductPart::kWgrad) {
        start_gathers_of(task, product);
      }
      if (is_product(program_, program_.tasks[task])) {
        product = is_next_piece(task, product) ? behind_ring(task, product) : task;
      }
    }
    for (uint32_t task = 0; task < num_tasks; ++task) {
      if (is_tensor_communication(program_, program_.tasks[task])) {
        start_behind_dgrad(task);
      }
    }
  }

  int64_t num_moves() const { return num_moves_; }

  std::vector<TaskId> order() const {
    const size_t num_tasks = program_.tasks.size();
    std::vector<std::vector<uint32_t>> guests(num_tasks + 1);
    for (uint32_t task = 0; task < num_tasks; ++task) {
      if (in_front_of_[task] != kNone) {
        guests[in_front_of_[task]].push_back(task);
      }
    }
    std::vector<TaskId> order;
    order.reserve(num_tasks);
    for (uint32_t task = 0; task < num_tasks; ++task) {
      for (const uint32_t guest : guests[task]) {
        order.emplace_back(guest);
      }
      if (in_front_of_[task] == kNone) {
        order.emplace_back(task);
      }
    }
    return order;
  }

 private:
  /// Whether the product is another piece of the product before it.
  bool is_next_piece(uint32_t task, uint32_t before) const {
    if (before == kNone) {
      return false;
    }
    const Task& a = program_.tasks[task];
    const Task& b = program_.tasks[before];
    return a.label == b.label && program_.spec(a).op == program_.spec(b).op;
  }

  /// The piece in front of which gathers go, `start` so far, if `piece` is one more. Blocks of a
  /// ring that pieces read come first: a gather would hold them up, and with them the pieces.
  uint32_t behind_ring(uint32_t piece, uint32_t start) const {
    for (const TaskId producer : dependencies_.of(TaskId(piece))) {
      if (producer.value > start &&
          is_tensor_communication(program_, program_.tasks[producer.index()])) {
        start = producer.value;
        while (!is_product(program_, program_.tasks[start])) {
          ++start;
        }
      }
    }
    return start;
  }

  void start_gathers_of(uint32_t wgrad, uint32_t product) {
    const std::string site = product_site(program_, program_.tasks[wgrad]);
    if (product == kNone || site.empty() ||
        overlap_of(sites_, other_site(site, "_dgrad")).method == OverlapMethod::kNone) {
      return;
    }
    std::vector<uint32_t> copies;  // of what is gathered
    for (const TaskId producer : dependencies_.of(TaskId(wgrad))) {
      start_gathers_behind(producer, product, copies);
    }
    if (!copies.empty()) {
      copies.push_back(wgrad);
      delay_behind_attention(copies);
    }
  }

  /// Moves a weight gradient, and what copies the gathered columns for it, behind an attention that
  /// comes next in its layer and that does not depend on them: attention's last matrix has the
  /// shortest dgrad, which hides no gather of all columns.
  void delay_behind_attention(std::span<const uint32_t> tasks) {
    const Label& label = program_.tasks[tasks.back()].label;
    const auto moves = [&](uint32_t task) { return std::ranges::find(tasks, task) != tasks.end(); };
    const uint32_t first = *std::ranges::min_element(tasks);
    for (uint32_t task = first + 1; task < program_.tasks.size(); ++task) {
      const auto producers = dependencies_.of(TaskId(task));
      if (moves(task)) {
        continue;
      }
      if (std::ranges::any_of(producers, [&](TaskId it) { return moves(it.value); })) {
        return;
      }
      const Task& it = program_.tasks[task];
      const bool is_near = it.label.layer == label.layer &&
                           it.label.microbatch == label.microbatch &&
                           it.label.virtual_stage == label.virtual_stage;
      if (!is_product(program_, it)) {
        continue;
      }
      if (is_near && is_attention(program_.spec(it)) && task + 1 < program_.tasks.size()) {
        for (const uint32_t moved : tasks) {
          in_front_of_[moved] = task + 1;
        }
        ++num_moves_;
      }
      return;
    }
  }

  /// The task itself if it is a gather, or those whose results it only copies, such as
  /// `join_blocks`; adds such copies of gathers that move.
  void start_gathers_behind(TaskId task, uint32_t product, std::vector<uint32_t>& copies) {
    if (task.value <= product || in_front_of_[task.index()] != kNone) {
      return;
    }
    const Task& it = program_.tasks[task.index()];
    const OpSpec& spec = program_.spec(it);
    if (communicates_as(spec, CommOp::kAllGather) && is_tensor_communication(program_, it)) {
      start_in_front_of(task.value, product);
    } else if (is_copy(spec)) {
      const int64_t before = num_moves_;
      for (const TaskId producer : dependencies_.of(task)) {
        start_gathers_behind(producer, product, copies);
      }
      if (num_moves_ > before) {
        copies.push_back(task.value);
      }
    }
  }

  /// Moves the gather and the tasks in between that compute its input, unless these depend on the
  /// product or compute products themselves.
  void start_in_front_of(uint32_t gather, uint32_t product) {
    std::vector<uint32_t> taken = {gather};
    for (size_t i = 0; i < taken.size(); ++i) {
      for (const TaskId producer : dependencies_.of(TaskId(taken[i]))) {
        if (producer.value == product || (producer.value > product && !may_come(producer.value))) {
          return;
        }
        if (producer.value > product && std::ranges::find(taken, producer.value) == taken.end()) {
          taken.push_back(producer.value);
        }
      }
    }
    for (const uint32_t task : taken) {
      in_front_of_[task] = product;
    }
    ++num_moves_;
  }

  bool may_come(uint32_t position) const {
    const Task& task = program_.tasks[position];
    return in_front_of_[position] == kNone && !is_product(program_, task) &&
           task.label.phase != Phase::kWgrad && task.label.phase != Phase::kOptimizer;
  }

  void start_behind_dgrad(uint32_t task) {
    const uint32_t dgrad = producer_of(task);
    if (dgrad == kNone || in_front_of_[task] != kNone) {
      return;
    }
    const std::string site = product_site(program_, program_.tasks[dgrad]);
    const bool is_wanted =
        overlap_of(sites_, other_site(site, "_wgrad")).method == OverlapMethod::kBulk;
    if (is_wanted && stands_between(dgrad, task)) {
      in_front_of_[task] = dgrad + 1;
      ++num_moves_;
    }
  }

  /// Whether a task that does not move is between the two.
  bool stands_between(uint32_t dgrad, uint32_t task) const {
    const auto begin = in_front_of_.begin();
    return std::any_of(begin + dgrad + 1, begin + task,
                       [](uint32_t place) { return place == kNone; });
  }

  /// The dgrad whose result the task communicates, if that is the last that it depends on.
  uint32_t producer_of(uint32_t task) const {
    uint32_t last = kNone;
    for (const TaskId producer : dependencies_.of(TaskId(task))) {
      last = last == kNone ? producer.value : std::max(last, producer.value);
    }
    const bool is_dgrad =
        last != kNone && product_part(program_.spec(program_.tasks[last])) == ProductPart::kDgrad &&
        program_.tasks[last].label.site.valid();
    return is_dgrad ? last : kNone;
  }

  const Program& program_;
  const SiteOverlaps& sites_;
  DependencyGraph dependencies_;
  std::vector<uint32_t> in_front_of_;  // by task: the one that it moves in front of, or kNone
  int64_t num_moves_ = 0;
};

bool any_overlap(const SiteOverlaps& sites) {
  return std::ranges::any_of(
      sites, [](const auto& site) { return site.second.method != OverlapMethod::kNone; });
}

}  // namespace

PassResult bulk_overlap(Program program, const BulkOverlapOptions& options) {
  if (!any_overlap(options.sites)) {
    return {std::move(program), {false, 0, "no site has a method"}};
  }
  Moves moves(program, options.sites);
  moves.choose();
  const int64_t num_moves = moves.num_moves();
  if (num_moves > 0) {
    const std::vector<TaskId> order = moves.order();
    program = with_tasks_in_order(std::move(program), order);
  }
  const bool changed = move_tensor_communication(program, options.comm_priority) || num_moves > 0;
  return {std::move(program),
          {changed, num_moves,
           fmt::format("started {} tensor-parallel calls earlier, beside a product", num_moves)}};
}

Pass bulk_overlap_pass(const PipelineOptions& options) {
  return {
      .name = "bulk_overlap",
      .summary = "Starts tensor communication early, beside a product that does not depend on it.",
      .run = run_of(bulk_overlap, options),
      .only_overlaps = true,
      .keys = {"overlap.tp_comm_overlap", "overlap.tp_comm_bulk_dgrad",
               "overlap.tp_comm_bulk_wgrad", "overlap.tp_comm_overlap_sites"},
      .read_keys =
          [](const OverlapConfig& overlap, PipelineOptions& its) {
            its.of<BulkOverlapOptions>().sites = site_overlaps(overlap);
          },
      .is_wanted = [](const OverlapConfig& overlap) { return overlap.tp_comm_overlap; }};
}

}  // namespace braid
