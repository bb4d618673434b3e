// Attention by cuDNN's fused kernels. They read and write rows of heads through strides, so nothing
// is copied.
#include "backends/cuda/kernels/attention_graph.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/library_error.h"
#include "base/errors.h"

namespace braid {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pointers = std::unordered_map<int64_t, void*>;

/// Names of the graphs' tensors.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV };

constexpr int64_t kMaxHeadSize = 256;
constexpr int64_t kHeadSizeStep = 8;  ///< vectors of 16 bytes
constexpr int64_t kElemBytes = 2;
constexpr size_t kAlignment = 16;

void check_built(fe::error_t error, const OpSpec& spec) {
  check(error.is_good(), "op {}: cuDNN {} has no plan: {}", spec.op, cudnnGetVersion(),
        error.get_message());
}

/// Declares the tensors of one call in a graph.
class GraphTensors {
 public:
  GraphTensors(Graph& graph, const AttentionProblem& problem, AttentionCall call)
      : graph_(graph), problem_(problem), sizes_(problem.sizes), call_(call) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Tensor queries(Uid uid, const HeadRows& rows) { return add(uid, query_shape(), strides(rows)); }
  Tensor keys(Uid uid) { return add(uid, key_shape(), strides(problem_.kv)); }
  Tensor lse() {
    Tensor tensor = add(kLse, lse_shape(), lse_strides());
    tensor->set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }

  void write_queries(const Tensor& tensor, Uid uid, const HeadRows& rows) {
    write(tensor, uid, query_shape(), strides(rows));
  }
  void write_keys(const Tensor& tensor, Uid uid) {
    write(tensor, uid, key_shape(), strides(problem_.d_kv));
  }
  void write_lse(const Tensor& tensor) {
    write(tensor, kLse, lse_shape(), lse_strides());
    tensor->set_data_type(fe::DataType_t::FLOAT);
  }

 private:
  using Sizes = std::vector<int64_t>;  // [batch, head, token, element of the head]

  int64_t call_heads() const { return call_.kv_heads * sizes_.group(); }
  Sizes query_shape() const {
    return {call_.batches, call_heads(), sizes_.queries, sizes_.head_size};
  }
  Sizes key_shape() const { return {call_.batches, call_.kv_heads, sizes_.keys, sizes_.head_size}; }
  Sizes lse_shape() const { return {call_.batches, call_heads(), sizes_.queries, 1}; }
  Sizes strides(const HeadRows& rows) const {
    return {rows.sequence, sizes_.head_size, rows.row, 1};
  }
  Sizes lse_strides() const { return {problem_.lse.sequence, problem_.lse.row, 1, 1}; }

  Tensor add(Uid uid, const Sizes& shape, const Sizes& strides) {
    return graph_.tensor(
        fe::graph::Tensor_attributes().set_uid(uid).set_dim(shape).set_stride(strides));
  }
  void write(const Tensor& tensor, Uid uid, const Sizes& shape, const Sizes& strides) {
    tensor->set_output(true).set_uid(uid).set_dim(shape).set_stride(strides);
  }

  Graph& graph_;
  const AttentionProblem& problem_;
  const AttentionSizes& sizes_;
  const AttentionCall call_;
};

/// Sets the mask in attributes of either direction. With equal numbers of queries and keys both
/// masks are the same, and cuDNN has its plain causal kernels for it.
template <class Attributes>
Attributes with_mask(Attributes attributes, const AttentionProblem& problem) {
  if (problem.causal && problem.sizes.queries == problem.sizes.keys) {
    attributes.set_causal_mask(true);
  } else if (problem.causal) {
    attributes.set_causal_mask_bottom_right(true);
  }
  attributes.set_attn_scale(problem.scale);
  return attributes;
}

/// A graph with its plan.
struct BuiltGraph {
  std::shared_ptr<const Graph> graph;
  size_t scratch_bytes = 0;
};

BuiltGraph build(std::shared_ptr<Graph> graph, const OpSpec& spec, CudaContext& context) {
  check_built(graph->build(context.cudnn(), {fe::HeurMode_t::A}), spec);
  int64_t bytes = 0;
  check_built(graph->get_workspace_size(bytes), spec);
  return {.graph = std::move(graph), .scratch_bytes = static_cast<size_t>(bytes)};
}

BuiltGraph forward_graph(const AttentionProblem& problem, const OpSpec& spec,
                         CudaContext& context) {
  auto graph = std::make_shared<Graph>();
  GraphTensors tensors(*graph, problem, {problem.sizes.batches, problem.sizes.kv_heads});
  const auto [out, lse] = graph->sdpa(
      tensors.queries(kQ, problem.q), tensors.keys(kK), tensors.keys(kV),
      with_mask(fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true),
                problem));
  tensors.write_queries(out, kOut, problem.out);
  tensors.write_lse(lse);
  return build(std::move(graph), spec, context);
}

BuiltGraph backward_graph(const AttentionProblem& problem, const OpSpec& spec, CudaContext& context,
                          AttentionCall call, bool repeatable) {
  auto graph = std::make_shared<Graph>();
  GraphTensors tensors(*graph, problem, call);
  const auto grads = graph->sdpa_backward(tensors.queries(kQ, problem.q), tensors.keys(kK),
                                          tensors.keys(kV), tensors.queries(kOut, problem.out),
                                          tensors.queries(kDOut, problem.out), tensors.lse(),
                                          with_mask(fe::graph::SDPA_backward_attributes()
                                                        .set_name("attention_backward")
                                                        .set_deterministic_algorithm(repeatable),
                                                    problem));
  tensors.write_queries(grads[0], kDQ, problem.d_q);
  tensors.write_keys(grads[1], kDK);
  tensors.write_keys(grads[2], kDV);
  return build(std::move(graph), spec, context);
}

void execute(const Graph& graph, CudaContext& context, Pointers pointers, std::byte* scratch,
             cudaStream_t stream) {
  for (const auto& [uid, pointer] : pointers) {
    check(uid == kLse || reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0,
          "attention: tensor {} is not {}-byte aligned", uid, kAlignment);
  }
  BRAID_CUDA_CHECK(cudnnSetStream(context.cudnn(), stream));
  fe::error_t error = graph.execute(context.cudnn(), pointers, scratch);
  if (error.is_bad()) {
    throw_device_error("cuDNN attention: {}", error.get_message());
  }
}

/// Pointers to the heads of a call in the tensors of the backward; the call begins with key/value
/// head `kv_head` and sequence `batch`.
Pointers backward_pointers(const AttentionProblem& problem, const AttentionPointers& whole,
                           int64_t batch, int64_t kv_head) {
  const AttentionSizes& sizes = problem.sizes;
  const auto head_at = [&](std::byte* tensor, const HeadRows& rows, int64_t head) {
    return tensor + (batch * rows.sequence + head * sizes.head_size) * kElemBytes;
  };
  const int64_t head = kv_head * sizes.group();
  const int64_t lse_at = batch * problem.lse.sequence + head * problem.lse.row;
  return {{kQ, head_at(whole.q, problem.q, head)},
          {kK, head_at(whole.k, problem.kv, kv_head)},
          {kV, head_at(whole.v, problem.kv, kv_head)},
          {kOut, head_at(whole.out, problem.out, head)},
          {kLse, whole.lse + lse_at * static_cast<int64_t>(sizeof(float))},
          {kDOut, head_at(whole.d_out, problem.out, head)},
          {kDQ, head_at(whole.d_q, problem.d_q, head)},
          {kDK, head_at(whole.d_k, problem.d_kv, kv_head)},
          {kDV, head_at(whole.d_v, problem.d_kv, kv_head)}};
}

}  // namespace

void check_attention(const AttentionSizes& sizes, const OpSpec& spec) {
  check(spec.operands[0].dtype == DType::kBF16, "op {}: CUDA has attention of bf16 only, not of {}",
        spec.op, dtype_name(spec.operands[0].dtype));
  if (sizes.head_size % kHeadSizeStep != 0 || sizes.head_size > kMaxHeadSize) {
    const int64_t nearest =
        std::clamp((sizes.head_size + kHeadSizeStep / 2) / kHeadSizeStep * kHeadSizeStep,
                   kHeadSizeStep, kMaxHeadSize);
    throw_config_error(
        "attention on CUDA needs a head size that is a multiple of {} and at most {}, not {} "
        "(width / heads of the "
        "model); the nearest is {}",
        kHeadSizeStep, kMaxHeadSize, sizes.head_size, nearest);
  }
}

AttentionPlan plan_attention(const AttentionProblem& problem, const OpSpec& spec,
                             CudaContext& context) {
  check_attention(problem.sizes, spec);
  const BuiltGraph built = forward_graph(problem, spec, context);
  return {.launch =
              [graph = built.graph, &context](const AttentionPointers& at, std::byte* scratch,
                                              cudaStream_t stream) {
                execute(*graph, context,
                        {{kQ, at.q}, {kK, at.k}, {kV, at.v}, {kOut, at.out}, {kLse, at.lse}},
                        scratch, stream);
              },
          .scratch_bytes = built.scratch_bytes};
}

void check_attention_backward(const AttentionSizes& sizes, const OpSpec& spec) {
  check_attention(sizes, spec);
  if (sizes.queries == 1 && sizes.keys == 1) {
    throw_config_error(
        "attention on CUDA needs a sequence of at least 2 tokens for its backward (over context "
        "ranks, chunks of as many), not 1");
  }
}

void check_cudnn_backward(size_t version, int64_t keys) {
  constexpr size_t kRepaired = 91501;
  constexpr int64_t kTile = 128;
  if (version < kRepaired && keys % kTile != 0) {
    throw_config_error(
        "cuDNN {}.{}.{} writes outside its buffers in the backward of attention over {} tokens, "
        "which is not a multiple of {}; install cuDNN 9.15.1 or later, or make train.sequence "
        "(over "
        "context ranks, their chunks) a multiple of {}, such as {}",
        version / 10000, version / 100 % 100, version % 100, keys, kTile, kTile,
        (keys + kTile - 1) / kTile * kTile);
  }
}

AttentionPlan plan_attention_backward(const AttentionProblem& problem, const OpSpec& spec,
                                      CudaContext& context,
                                      const AttentionBackwardOptions& options) {
  check_attention_backward(problem.sizes, spec);
  check_cudnn_backward(cudnnGetVersion(), problem.sizes.keys);
  const AttentionCall call = attention_backward_call(problem.sizes, options);
  const BuiltGraph built = backward_graph(problem, spec, context, call, options.repeatable);
  return {.launch =
              [graph = built.graph, problem, call, &context](
                  const AttentionPointers& at, std::byte* scratch, cudaStream_t stream) {
                for (int64_t batch = 0; batch < problem.sizes.batches; batch += call.batches) {
                  for (int64_t head = 0; head < problem.sizes.kv_heads; head += call.kv_heads) {
                    execute(*graph, context, backward_pointers(problem, at, batch, head), scratch,
                            stream);
                  }
                }
              },
          .scratch_bytes = built.scratch_bytes};
}

}  // namespace braid
