#pragma once

#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/autodiff.h"
#include "ops/cross_entropy.h"
#include "ops/graph.h"
#include "ops/linear.h"
#include "ops/operand_checker.h"

namespace braid {

inline constexpr int64_t kRows = 8;
inline constexpr int64_t kSequence = 4;
inline constexpr int64_t kVocabulary = 20;

/// A forward graph under construction, ended by a projection and the loss. Values in `inputs` stay
/// what they are; everything is of one dtype.
class Forward {
 public:
  explicit Forward(DType dtype = DType::kBF16) : dtype_(dtype) {}

  StageGraph& graph() { return graph_; }
  GraphBuilder& builder() { return builder_; }

  ValueId value(ValueKind kind, std::string name, Shape shape) {
    return builder_.named_value(
        {.name = std::move(name), .dtype = dtype_, .shape = shape, .kind = kind});
  }
  ValueId param(std::string name, Shape shape) {
    return value(ValueKind::kParam, std::move(name), shape);
  }
  ValueId activation(std::string name, Shape shape) {
    return value(ValueKind::kActivation, std::move(name), shape);
  }
  ValueId input(std::string name, Shape shape) {
    return value(ValueKind::kInput, std::move(name), shape);
  }
  ValueId tokens(std::string name) {
    return builder_.named_value({.name = std::move(name),
                                 .dtype = DType::kI32,
                                 .shape = {kRows},
                                 .kind = ValueKind::kInput});
  }

  void loss_of_logits(ValueId logits) {
    const DType wide = accumulator_dtype(dtype_);
    const ValueId scale = builder_.named_value(
        {.name = "loss_scale", .dtype = wide, .shape = {1}, .kind = ValueKind::kInput});
    const ValueId loss = builder_.named_value(
        {.name = "loss", .dtype = wide, .shape = {1}, .kind = ValueKind::kOutput});
    cross_entropy(builder_,
                  {.logits = logits, .labels = tokens("labels"), .loss_scale = scale, .loss = loss},
                  {.vocabulary = kVocabulary}, "loss");
  }

  /// Of the second of two ranks that hold the columns.
  void sharded_loss_of_logits(ValueId logits) {
    const DType wide = accumulator_dtype(dtype_);
    const ValueId scale = builder_.named_value(
        {.name = "loss_scale", .dtype = wide, .shape = {1}, .kind = ValueKind::kInput});
    const ValueId loss = builder_.named_value(
        {.name = "sharded_loss", .dtype = wide, .shape = {1}, .kind = ValueKind::kOutput});
    sharded_cross_entropy(
        builder_,
        {.operands =
             {.logits = logits, .labels = tokens("labels"), .loss_scale = scale, .loss = loss},
         .shard = {.vocabulary = kVocabulary, .vocabulary_begin = kVocabulary / 2},
         .group = "tensor",
         .num_ranks = 2},
        "sharded_loss");
  }

  /// logits = x w^T and their loss; returns the logits.
  ValueId loss_of(ValueId x) {
    const ValueId head = param("head", {kVocabulary, graph_.value(x).shape[1]});
    const ValueId logits = linear(builder_, x, head, std::nullopt, "logits");
    loss_of_logits(logits);
    return logits;
  }

  const StageGraph& differentiated() {
    differentiate(graph_);
    return graph_;
  }

 private:
  DType dtype_;
  StageGraph graph_;
  GraphBuilder builder_{graph_};
};

/// "op(name, name -> name)": values before the arrow are read, those after it are written, and "+"
/// marks a value that the op adds to.
inline std::string describe(const StageGraph& graph, const Node& node) {
  std::string reads_text;
  std::string writes_text;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const Value& value = graph.value(node.operands[i]);
    const Access access = node.spec.operands[i].access;
    std::string& text = writes(access) ? writes_text : reads_text;
    text += text.empty() ? "" : ", ";
    text += access == Access::kReadWrite ? "+" : "";
    text += value.name;
    text += value.kind == ValueKind::kMainGrad ? ".main_grad" : "";
  }
  return fmt::format("{}({} -> {})", node.spec.op, reads_text, writes_text);
}

inline std::vector<std::string> backward_of(const StageGraph& graph) {
  std::vector<std::string> list;
  for (const Node& node : graph.backward) {
    list.push_back(describe(graph, node));
  }
  return list;
}

}  // namespace braid
