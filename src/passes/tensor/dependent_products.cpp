#include "passes/tensor/dependent_products.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "ops/attributes.h"
#include "ops/linear.h"
#include "ops/op.h"
#include "ops/scaled_linear.h"

namespace braid {
namespace {

using Kind = DependentProduct::Kind;

/// The tasks that access each buffer, in program order.
class Touches {
 public:
  explicit Touches(const Program& program) : program_(program), tasks_(program.buffers.size()) {
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      for (const BufferRange& range : program.operands_of(program.tasks[task])) {
        std::vector<uint32_t>& list = tasks_[range.buffer.index()];
        if (list.empty() || list.back() != task) {
          list.push_back(task);
        }
      }
    }
  }

  /// The tasks that access some of the range: the first two and the number of all.
  struct Users {
    uint32_t first = 0;
    uint32_t second = 0;
    size_t count = 0;
  };

  Users of(const BufferRange& range) const {
    Users users;
    for (const uint32_t task : tasks_[range.buffer.index()]) {
      if (overlaps(task, range)) {
        ++users.count;
        (users.count == 1 ? users.first : users.second) = users.count < 3 ? task : users.second;
      }
    }
    return users;
  }

  bool is_touched_between(const BufferRange& range, uint32_t first, uint32_t last) const {
    return any_between(range, first, last, [](Access) { return true; });
  }
  bool is_written_between(const BufferRange& range, uint32_t first, uint32_t last) const {
    return any_between(range, first, last, writes);
  }

 private:
  bool overlaps(uint32_t task, const BufferRange& range) const {
    return std::ranges::any_of(program_.operands_of(program_.tasks[task]),
                               [&](const BufferRange& it) { return it.overlaps(range); });
  }

  template <class Wanted>
  bool any_between(const BufferRange& range, uint32_t first, uint32_t last,
                   const Wanted& wanted) const {
    const std::vector<uint32_t>& list = tasks_[range.buffer.index()];
    for (auto at = std::upper_bound(list.begin(), list.end(), first);
         at != list.end() && *at < last; ++at) {
      const auto ranges = program_.operands_of(program_.tasks[*at]);
      const auto& specs = program_.spec(program_.tasks[*at]).operands;
      for (size_t i = 0; i < ranges.size(); ++i) {
        if (ranges[i].overlaps(range) && wanted(specs[i].access)) {
          return true;
        }
      }
    }
    return false;
  }

  const Program& program_;
  std::vector<std::vector<uint32_t>> tasks_;  // by buffer
};

bool is_scaled_product(const OpSpec& spec) {
  return has_role(spec, OpRole::kScaledProduct) || has_role(spec, OpRole::kScaledProductDgrad);
}

bool is_product(const OpSpec& spec) {
  return has_role(spec, OpRole::kProduct) || is_scaled_product(spec) ||
         (has_role(spec, OpRole::kProductDgrad) &&
          !attributes_of<LinearDgradAttributes>(spec).accumulate);
}

bool is_in_step_buffer(const Program& program, const BufferRange& range) {
  const Buffer& buffer = program.buffers[range.buffer.index()];
  return buffer.lifetime == Lifetime::kStep && buffer.placement == Placement::kDevice;
}

/// Whether the task puts that many equal blocks of rows side by side.
bool joins_blocks(const OpSpec& spec, size_t num_blocks) {
  const OpDefinition* const op = find_known_op(spec.op);
  if (op == nullptr || op->pieces.block_sources == nullptr || spec.operands.size() != 2) {
    return false;
  }
  const std::vector<int64_t> sources = op->pieces.block_sources(spec);
  const size_t rows = sources.size() / num_blocks;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (std::cmp_not_equal(sources[i], i % num_blocks * rows + i / num_blocks)) {
      return false;
    }
  }
  return !sources.empty() && sources.size() % num_blocks == 0;
}

class Finder {
 public:
  explicit Finder(const Program& program) : program_(program), touches_(program) {}

  std::vector<DependentProduct> run() const {
    std::vector<uint32_t> products;
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      if (is_product(spec(task))) {
        products.push_back(task);
      }
    }
    std::vector<DependentProduct> found;
    for (size_t i = 0; i < products.size(); ++i) {
      const bool is_piece =
          (i > 0 && is_same_product(products[i - 1], products[i])) ||
          (i + 1 < products.size() && is_same_product(products[i], products[i + 1]));
      auto pair = is_piece ? std::nullopt : gather_in_front(products[i]);
      pair = pair || is_piece ? pair : call_behind(products[i]);
      if (pair) {
        found.push_back(*pair);
      }
    }
    return found;
  }

 private:
  /// True if both are pieces of one product: a site computes one product of the same rows, unless
  /// it was cut.
  bool is_same_product(uint32_t a, uint32_t b) const {
    return program_.tasks[a].label == program_.tasks[b].label && spec(a).op == spec(b).op &&
           operand(a, 0) == operand(b, 0);
  }

  const OpSpec& spec(uint32_t task) const { return program_.spec(program_.tasks[task]); }
  BufferRange operand(uint32_t task, size_t index) const {
    return program_.operands_of(program_.tasks[task])[index];
  }

  /// The pair with the group of the call. nullopt if the call is not tensor communication, or if
  /// its sizes do not fit the group.
  std::optional<DependentProduct> in_group(Kind kind, uint32_t product, uint32_t call) const {
    const Task& task = program_.tasks[call];
    if (!is_tensor_communication(program_, task)) {
      return std::nullopt;
    }
    const GroupId group = *group_of(program_, program_.spec(task));
    const std::vector<int>& ranks = program_.groups[group.index()].ranks;
    const auto self = std::ranges::find(ranks, program_.rank);
    const auto num_ranks = static_cast<int64_t>(ranks.size());
    const OpSpec& product_spec = spec(product);
    const bool fits = kind == Kind::kReduce || product_spec.operands[0].shape[0] % num_ranks == 0;
    if (self == ranks.end() || !fits) {
      return std::nullopt;
    }
    return DependentProduct{.kind = kind,
                            .product = product,
                            .call = call,
                            .group = group,
                            .num_ranks = num_ranks,
                            .rank = self - ranks.begin()};
  }

  std::optional<DependentProduct> gather_in_front(uint32_t product) const {
    const BufferRange rows = operand(product, 0);
    const Touches::Users users = touches_.of(rows);
    if (!is_in_step_buffer(program_, rows) || users.count < 2 || users.second != product) {
      return std::nullopt;
    }
    const uint32_t call = users.first;
    if (!communicates_as(spec(call), CommOp::kAllGather) || operand(call, 1) != rows ||
        touches_.is_written_between(operand(call, 0), call, product)) {
      return std::nullopt;
    }
    auto pair = in_group(Kind::kGather, product, call);
    if (pair) {
      pair->has_other_readers = users.count > 2;
    }
    if (pair && is_scaled_product(spec(product)) && scale_block(spec(product)) != 0) {
      pair->scales = gathered_scales(product, pair->group);
      return pair->scales ? pair : std::nullopt;
    }
    return pair;
  }

  std::optional<GatheredScales> gathered_scales(uint32_t product, GroupId group) const {
    const BufferRange scales = operand(product, 1);
    const Touches::Users users = touches_.of(scales);
    if (!is_in_step_buffer(program_, scales) || users.count < 2 || users.first >= product ||
        !joins_blocks(spec(users.first), program_.groups[group.index()].ranks.size()) ||
        operand(users.first, 1) != scales) {
      return std::nullopt;
    }
    const uint32_t join = users.first;
    const BufferRange blocks = operand(join, 0);
    const Touches::Users its = touches_.of(blocks);
    if (!is_in_step_buffer(program_, blocks) || its.count != 2 || its.second != join ||
        !communicates_as(spec(its.first), CommOp::kAllGather) ||
        !is_tensor_communication(program_, program_.tasks[its.first]) ||
        operand(its.first, 1) != blocks || group_of(program_, spec(its.first)) != group ||
        touches_.is_written_between(operand(its.first, 0), its.first, product)) {
      return std::nullopt;
    }
    return GatheredScales{.call = its.first, .join = join, .has_other_readers = users.count > 2};
  }

  std::optional<DependentProduct> call_behind(uint32_t product) const {
    const BufferRange result = program_.operands_of(program_.tasks[product]).back();
    const Touches::Users users = touches_.of(result);
    if (!is_in_step_buffer(program_, result) || users.count < 2 || users.first != product) {
      return std::nullopt;
    }
    const uint32_t call = users.second;
    const bool scatters = communicates_as(spec(call), CommOp::kReduceScatter);
    const bool to_another = spec(call).operands.size() == 2;
    if ((!scatters && !communicates_as(spec(call), CommOp::kAllReduce)) ||
        operand(call, 0) != result ||
        (to_another && touches_.is_touched_between(operand(call, 1), product, call))) {
      return std::nullopt;
    }
    auto pair = in_group(scatters ? Kind::kScatter : Kind::kReduce, product, call);
    if (pair) {
      pair->has_other_readers = users.count > 2;
    }
    return pair;
  }

  const Program& program_;
  Touches touches_;
};

}  // namespace

std::vector<DependentProduct> find_dependent_products(const Program& program) {
  return Finder(program).run();
}

}  // namespace braid
