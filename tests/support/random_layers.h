#pragma once

#include <array>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ir/program.h"
#include "ops/attributes.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace braid {

struct RandomLayersOptions {
  int num_layers = 3;
  int num_microbatches = 2;
  int num_ranks = 1;       ///< if more, all-reduces in place run over all of them
  bool gathers = false;    ///< weights are gathered in each job
  bool is_strange = true;  ///< weights change in the middle, forward tasks among the backward
};

/// A training step of random layers, the same for the same seed on any machine: forward tasks of
/// real ops on [4,8] values, residual additions fused with norms or not, sums in place, values
/// written in two halves; backward tasks that read values of their layer, and now and then of
/// another. It can be run by executors (without gathers, on one rank). It has no events.
class RandomLayers {
 public:
  RandomLayers(uint64_t seed, const RandomLayersOptions& options)
      : options_(options), random_(seed), builder_("layers", 0, options.num_ranks) {}

  Program make() {
    stream_ = builder_.add_stream({"compute", StreamKind::kCompute, 0});
    Group group{"all", GroupKind::kTensor, {}};
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      group.ranks.push_back(rank);
    }
    builder_.add_group(group);
    weights_ = persistent("weights", {kWeights * kWidth * kWidth}, BufferRole::kParam);
    norms_ = persistent("norms", {kWidth}, BufferRole::kParam);
    grads_ = persistent("grads", {kWidth, kWidth}, BufferRole::kMainGrad);
    norm_grads_ = persistent("norm_grads", {kWidth}, BufferRole::kMainGrad);
    in_ = persistent("in", {kRows, kWidth}, BufferRole::kIo);
    out_ = persistent("out", {kRows, kWidth}, BufferRole::kIo);
    values_.resize(static_cast<size_t>(options_.num_microbatches));
    run_jobs();
    return builder_.take();
  }

 private:
  static constexpr int64_t kRows = 4;
  static constexpr int64_t kWidth = 8;
  static constexpr int64_t kWeights = 3;

  struct Norm {
    BufferId x;
    BufferId rstd;
  };
  struct Values {
    std::vector<BufferId> list;
    std::vector<Norm> norms;
  };

  int64_t below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  bool one_in(int64_t n) { return below(n) == 0; }
  const BufferId& any(const std::vector<BufferId>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }

  BufferId persistent(std::string name, const Shape& shape, BufferRole role) {
    return builder_.add_buffer(
        {std::move(name), DType::kF32, shape, role, Lifetime::kPersistent, Placement::kDevice});
  }
  BufferId step(const Shape& shape = {kRows, kWidth}, BufferRole role = BufferRole::kActivation) {
    return builder_.add_buffer({"b" + std::to_string(builder_.program().buffers.size()),
                                DType::kF32, shape, role, Lifetime::kStep, Placement::kDevice});
  }

  // All forwards first, or each microbatch in turn; backwards in either order.
  void run_jobs() {
    const bool in_turn = one_in(2);
    const bool last_first = one_in(2);
    for (int mb = 0; mb < options_.num_microbatches; ++mb) {
      forward(mb);
      if (in_turn) {
        backward(mb);
      }
    }
    for (int i = 0; i < options_.num_microbatches && !in_turn; ++i) {
      backward(last_first ? options_.num_microbatches - 1 - i : i);
    }
    change_weights();
  }

  void begin(Phase phase, int mb, int layer) {
    label_ = {.phase = phase, .microbatch = mb, .virtual_stage = 0, .layer = layer};
  }

  struct Argument {
    BufferRange range;
    Access access = Access::kRead;
    Shape shape = {kRows, kWidth};
  };
  Argument in(BufferId id) { return {builder_.whole(id), Access::kRead, shape_of(id)}; }
  Argument out(BufferId id) { return {builder_.whole(id), Access::kWrite, shape_of(id)}; }
  Argument sum(BufferId id) { return {builder_.whole(id), Access::kReadWrite, shape_of(id)}; }
  Shape shape_of(BufferId id) const { return builder_.program().buffers[id.index()].shape; }

  void task(std::string op, std::vector<Attribute> attributes,
            const std::vector<Argument>& arguments, Phase phase) {
    OpSpec spec{std::move(op), std::move(attributes), {}};
    std::vector<BufferRange> ranges;
    for (const Argument& argument : arguments) {
      spec.operands.push_back({DType::kF32, argument.access, argument.shape});
      ranges.push_back(argument.range);
    }
    Label label = label_;
    label.phase = phase;
    builder_.add_task(spec, ranges, stream_, label);
  }
  void task(std::string op, std::vector<Attribute> attributes,
            const std::vector<Argument>& arguments) {
    task(std::move(op), std::move(attributes), arguments, label_.phase);
  }

  Argument weight(bool is_new_job) {
    const int64_t begin = below(kWeights) * kWidth * kWidth;
    if (!options_.gathers) {
      return {{weights_, begin, begin + kWidth * kWidth}, Access::kRead, {kWidth, kWidth}};
    }
    if (is_new_job || !gathered_.valid()) {
      gathered_ = step({kWeights * kWidth * kWidth}, BufferRole::kGathered);
      task("all_gather", {{"group", int64_t{0}}},
           {{builder_.whole(weights_), Access::kRead, {kWeights * kWidth * kWidth}},
            {builder_.whole(gathered_), Access::kWrite, {kWeights * kWidth * kWidth}}},
           Phase::kComm);
    }
    return {{gathered_, begin, begin + kWidth * kWidth}, Access::kRead, {kWidth, kWidth}};
  }

  void forward(int mb) {
    begin(Phase::kForward, mb, -1);
    const BufferId x = step();
    task("copy", {}, {in(in_), out(x)});
    gathered_ = BufferId();
    std::vector<BufferId> entering = {x};
    std::vector<Values>& layers = values_[static_cast<size_t>(mb)];
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      begin(Phase::kForward, mb, layer);
      Values& made = layers.emplace_back();
      std::vector<BufferId> visible = entering;
      for (int64_t i = 0, count = 2 + below(6); i < count; ++i) {
        const size_t before = made.list.size();
        forward_task(visible, made);
        visible.insert(visible.end(), made.list.begin() + static_cast<ptrdiff_t>(before),
                       made.list.end());
      }
      entering = {made.list.back(), any(visible)};
    }
    begin(Phase::kForward, mb, -1);
    task("copy", {}, {in(entering.front()), out(out_)});
  }

  void forward_task(const std::vector<BufferId>& visible, Values& made) {
    const BufferId x = any(visible);
    const BufferId y = step();
    const auto norm = to_attributes(NormAttributes{});
    switch (below(7)) {
      case 0:
        task("gelu", {}, {in(x), out(y)});
        break;
      case 1:
        task("add", {}, {in(x), in(any(visible)), out(y)});
        break;
      case 2: {
        const BufferId rstd = step({kRows});
        task("rmsnorm", norm, {in(x), in(norms_), out(y), out(rstd)});
        made.norms.push_back({x, rstd});
        break;
      }
      case 3: {
        const BufferId total = step();
        const BufferId rstd = step({kRows});
        task("add_rmsnorm", norm,
             {in(x), in(any(visible)), in(norms_), out(total), out(y), out(rstd)});
        made.norms.push_back({total, rstd});
        made.list.push_back(total);
        break;
      }
      case 4:
        task("linear", to_attributes(LinearAttributes{}), {in(x), weight(false), out(y)});
        task("all_reduce", {{"group", int64_t{0}}},
             {{builder_.whole(y), Access::kReadWrite, {kRows * kWidth}}}, Phase::kComm);
        break;
      case 5:
        half(x, y, 0);
        if (options_.is_strange && one_in(4)) {
          const BufferId early = step({kRows / 2, kWidth});
          task("copy", {},
               {{{y, 0, kRows * kWidth / 2}, Access::kRead, {kRows / 2, kWidth}}, out(early)});
        }
        half(any(visible), y, 1);
        break;
      default:
        task("linear", to_attributes(LinearAttributes{}), {in(x), weight(false), out(y)});
        break;
    }
    made.list.push_back(y);
  }

  void half(BufferId x, BufferId y, int64_t which) {
    const int64_t count = kRows * kWidth / 2;
    const Shape shape{kRows / 2, kWidth};
    task("copy", {},
         {{{x, which * count, (which + 1) * count}, Access::kRead, shape},
          {{y, which * count, (which + 1) * count}, Access::kWrite, shape}});
  }

  void backward(int mb) {
    begin(Phase::kDgrad, mb, -1);
    BufferId grad = step();
    task("copy", {}, {in(out_), out(grad)});
    const std::vector<Values>& layers = values_[static_cast<size_t>(mb)];
    bool is_new_job = true;
    for (int layer = options_.num_layers; layer-- > 0;) {
      begin(Phase::kDgrad, mb, layer);
      for (int64_t i = 0, count = 1 + below(5); i < count; ++i) {
        const auto from = one_in(6) ? below(options_.num_layers) : layer;
        grad = backward_task(layers[static_cast<size_t>(from)], grad, is_new_job);
        is_new_job = false;
      }
      if (options_.is_strange && one_in(8)) {
        change_weights();
      }
    }
    begin(Phase::kDgrad, mb, -1);
    task("copy", {}, {in(grad), out(out_)});
  }

  BufferId backward_task(const Values& values, BufferId grad, bool is_new_job) {
    const BufferId next = step();
    if (!values.norms.empty() && one_in(2)) {
      const Norm& norm =
          values.norms[static_cast<size_t>(below(static_cast<int64_t>(values.norms.size())))];
      task("rmsnorm_backward", to_attributes(NormBackwardAttributes{}),
           {in(norm.x), in(norms_), in(norm.rstd), in(grad), out(next), sum(norm_grads_)});
      return next;
    }
    const BufferId x = any(values.list);
    if (one_in(3)) {
      task("linear_wgrad", to_attributes(LinearWgradAttributes{}), {in(x), in(grad), sum(grads_)},
           Phase::kWgrad);
      return grad;
    }
    if (one_in(3)) {
      task("linear_dgrad", to_attributes(LinearDgradAttributes{}),
           {in(grad), weight(is_new_job), out(next)});
      return next;
    }
    const bool is_forward = options_.is_strange && one_in(10);
    task("add", {}, {in(x), in(grad), out(next)}, is_forward ? Phase::kForward : Phase::kDgrad);
    return next;
  }

  void change_weights() {
    const int64_t begin = below(kWeights) * kWidth * kWidth;
    task("copy", {},
         {in(grads_),
          {{weights_, begin, begin + kWidth * kWidth}, Access::kWrite, {kWidth, kWidth}}},
         Phase::kOptimizer);
  }

  RandomLayersOptions options_;
  std::mt19937_64 random_;
  ProgramBuilder builder_;
  StreamId stream_;
  Label label_;
  BufferId weights_, norms_, grads_, norm_grads_, in_, out_;
  BufferId gathered_;                        // of this job
  std::vector<std::vector<Values>> values_;  // [microbatch][layer]
};

inline Program random_layers(uint64_t seed, const RandomLayersOptions& options = {}) {
  return RandomLayers(seed, options).make();
}

}  // namespace braid
