// Attention by cuDNN's fused kernels, reading and writing the packed rows of qkv through strides,
// so that nothing is copied. cuDNN's softmax statistics are max + ln(sum(exp(score - max))) of the
// scaled scores, which is the op's lse.
#include "backends/cuda/kernels/attention.h"

#include <cudnn_frontend.h>

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/kernels/attention_backward_sm90.h"
#include "backends/cuda/kernels/attention_sm90.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/library_error.h"
#include "base/errors.h"
#include "ops/attention.h"
#include "ops/attributes.h"

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

/// Sizes of the problem, and where heads lie: a row of qkv holds the query heads, then the key
/// heads, then the value heads.
struct Layout : AttentionSizes {
  float scale = 0;

  explicit Layout(const OpSpec& spec)
      : AttentionSizes(spec),
        scale(static_cast<float>(attributes_of<AttentionAttributes>(spec).scale)) {}

  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  int64_t out_width() const { return heads * head_size; }
};

void check_supported(const OpSpec& spec, const Layout& layout) {
  check(spec.operands[0].dtype == DType::kBF16, "op {}: CUDA has attention of bf16 only, not of {}",
        spec.op, dtype_name(spec.operands[0].dtype));
  if (layout.head_size % kHeadSizeStep != 0 || layout.head_size > kMaxHeadSize) {
    const int64_t nearest =
        std::clamp((layout.head_size + kHeadSizeStep / 2) / kHeadSizeStep * kHeadSizeStep,
                   kHeadSizeStep, kMaxHeadSize);
    throw_config_error(
        "attention on CUDA needs a head size that is a multiple of {} and at most {}, not {} "
        "(width / heads of the "
        "model); the nearest is {}",
        kHeadSizeStep, kMaxHeadSize, layout.head_size, nearest);
  }
}

void check_built(fe::error_t error, const OpSpec& spec) {
  check(error.is_good(), "op {}: cuDNN {} has no plan: {}", spec.op, cudnnGetVersion(),
        error.get_message());
}

/// Declares the tensors of one call in a graph.
class GraphTensors {
 public:
  GraphTensors(Graph& graph, const Layout& layout, AttentionCall call)
      : graph_(graph), layout_(layout), call_(call) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Tensor queries(Uid uid) { return add(uid, query_shape(), strides(layout_.qkv_width())); }
  Tensor keys(Uid uid) { return add(uid, key_shape(), strides(layout_.qkv_width())); }
  Tensor outputs(Uid uid) { return add(uid, query_shape(), strides(layout_.out_width())); }
  Tensor lse() {
    Tensor tensor = add(kLse, {call_.batches, call_heads(), layout_.sequence, 1}, lse_strides());
    tensor->set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }

  void write_queries(const Tensor& tensor, Uid uid) {
    write(tensor, uid, query_shape(), layout_.qkv_width());
  }
  void write_keys(const Tensor& tensor, Uid uid) {
    write(tensor, uid, key_shape(), layout_.qkv_width());
  }
  void write_outputs(const Tensor& tensor, Uid uid) {
    write(tensor, uid, query_shape(), layout_.out_width());
  }
  void write_lse(const Tensor& tensor) {
    tensor->set_output(true)
        .set_uid(kLse)
        .set_dim({call_.batches, call_heads(), layout_.sequence, 1})
        .set_stride(lse_strides())
        .set_data_type(fe::DataType_t::FLOAT);
  }

 private:
  using Sizes = std::vector<int64_t>;  // [batch, head, token, element of the head]

  int64_t call_heads() const { return call_.kv_heads * layout_.group(); }
  Sizes query_shape() const {
    return {call_.batches, call_heads(), layout_.sequence, layout_.head_size};
  }
  Sizes key_shape() const {
    return {call_.batches, call_.kv_heads, layout_.sequence, layout_.head_size};
  }
  Sizes strides(int64_t width) const {
    return {layout_.sequence * width, layout_.head_size, width, 1};
  }
  Sizes lse_strides() const { return {layout_.heads * layout_.sequence, layout_.sequence, 1, 1}; }

  Tensor add(Uid uid, const Sizes& shape, const Sizes& strides) {
    return graph_.tensor(
        fe::graph::Tensor_attributes().set_uid(uid).set_dim(shape).set_stride(strides));
  }
  void write(const Tensor& tensor, Uid uid, const Sizes& shape, int64_t width) {
    tensor->set_output(true).set_uid(uid).set_dim(shape).set_stride(strides(width));
  }

  Graph& graph_;
  const Layout& layout_;
  const AttentionCall call_;
};

/// A graph with its plan.
struct Plan {
  std::shared_ptr<const Graph> graph;
  size_t scratch_bytes = 0;
};

Plan build(std::shared_ptr<Graph> graph, const OpSpec& spec, CudaContext& context) {
  check_built(graph->build(context.cudnn(), {fe::HeurMode_t::A}), spec);
  int64_t bytes = 0;
  check_built(graph->get_workspace_size(bytes), spec);
  return {.graph = std::move(graph), .scratch_bytes = static_cast<size_t>(bytes)};
}

Plan forward_plan(const OpSpec& spec, CudaContext& context, const Layout& layout) {
  auto graph = std::make_shared<Graph>();
  GraphTensors tensors(*graph, layout, {layout.batches, layout.kv_heads});
  const auto [out, lse] = graph->sdpa(tensors.queries(kQ), tensors.keys(kK), tensors.keys(kV),
                                      fe::graph::SDPA_attributes()
                                          .set_name("attention")
                                          .set_generate_stats(true)
                                          .set_causal_mask(true)
                                          .set_attn_scale(layout.scale));
  tensors.write_outputs(out, kOut);
  tensors.write_lse(lse);
  return build(std::move(graph), spec, context);
}

Plan backward_plan(const OpSpec& spec, CudaContext& context, const Layout& layout,
                   AttentionCall call, bool repeatable) {
  auto graph = std::make_shared<Graph>();
  GraphTensors tensors(*graph, layout, call);
  const auto grads =
      graph->sdpa_backward(tensors.queries(kQ), tensors.keys(kK), tensors.keys(kV),
                           tensors.outputs(kOut), tensors.outputs(kDOut), tensors.lse(),
                           fe::graph::SDPA_backward_attributes()
                               .set_name("attention_backward")
                               .set_causal_mask(true)
                               .set_attn_scale(layout.scale)
                               .set_deterministic_algorithm(repeatable));
  tensors.write_queries(grads[0], kDQ);
  tensors.write_keys(grads[1], kDK);
  tensors.write_keys(grads[2], kDV);
  return build(std::move(graph), spec, context);
}

void execute(const Plan& plan, CudaContext& context, const CudaKernelArgs& args,
             Pointers pointers) {
  for (const auto& [uid, pointer] : pointers) {
    check(uid == kLse || reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0,
          "attention: tensor {} is not {}-byte aligned", uid, kAlignment);
  }
  BRAID_CUDA_CHECK(cudnnSetStream(context.cudnn(), args.stream));
  fe::error_t error = plan.graph->execute(context.cudnn(), pointers, args.scratch);
  if (error.is_bad()) {
    throw_device_error("cuDNN attention: {}", error.get_message());
  }
}

/// Where the heads of a call lie in the operands.
class CallPointers {
 public:
  CallPointers(const Layout& layout, int64_t batch, int64_t kv_head)
      : layout_(layout), row_(batch * layout.sequence), batch_(batch), kv_head_(kv_head) {}

  std::byte* queries(std::byte* qkv) const { return packed(qkv, head()); }
  std::byte* keys(std::byte* qkv) const { return packed(qkv, layout_.heads + kv_head_); }
  std::byte* values(std::byte* qkv) const {
    return packed(qkv, layout_.heads + layout_.kv_heads + kv_head_);
  }
  std::byte* outputs(std::byte* out) const {
    return out + (row_ * layout_.out_width() + head() * layout_.head_size) * kElemBytes;
  }
  std::byte* lse(std::byte* lse) const {
    return lse + (batch_ * layout_.heads + head()) * layout_.sequence *
                     static_cast<int64_t>(sizeof(float));
  }

 private:
  int64_t head() const { return kv_head_ * layout_.group(); }
  std::byte* packed(std::byte* qkv, int64_t slot) const {
    return qkv + (row_ * layout_.qkv_width() + slot * layout_.head_size) * kElemBytes;
  }

  const Layout& layout_;
  int64_t row_;
  int64_t batch_;
  int64_t kv_head_;
};

void run_backward(const Plan& plan, CudaContext& context, const Layout& layout, AttentionCall call,
                  const CudaKernelArgs& args) {
  for (int64_t batch = 0; batch < layout.batches; batch += call.batches) {
    for (int64_t kv_head = 0; kv_head < layout.kv_heads; kv_head += call.kv_heads) {
      const CallPointers at(layout, batch, kv_head);
      std::byte* const qkv = args.operands[0];
      std::byte* const d_qkv = args.operands[4];
      execute(plan, context, args,
              {{kQ, at.queries(qkv)},
               {kK, at.keys(qkv)},
               {kV, at.values(qkv)},
               {kOut, at.outputs(args.operands[1])},
               {kLse, at.lse(args.operands[2])},
               {kDOut, at.outputs(args.operands[3])},
               {kDQ, at.queries(d_qkv)},
               {kDK, at.keys(d_qkv)},
               {kDV, at.values(d_qkv)}});
    }
  }
}

}  // namespace

CudaKernel make_cuda_attention(const OpSpec& spec, CudaContext& context) {
  return make_cuda_attention(spec, context, attention_method(AttentionSizes(spec)));
}

CudaKernel make_cuda_attention(const OpSpec& spec, CudaContext& context, AttentionMethod method) {
  const Layout layout(spec);
  check_supported(spec, layout);
  if (method == AttentionMethod::kSm90) {
    return make_attention_sm90(spec, context);
  }
  const Plan plan = forward_plan(spec, context, layout);
  return {.launch =
              [plan, layout, &context](const CudaKernelArgs& args) {
                const CallPointers at(layout, 0, 0);
                std::byte* const qkv = args.operands[0];
                execute(plan, context, args,
                        {{kQ, at.queries(qkv)},
                         {kK, at.keys(qkv)},
                         {kV, at.values(qkv)},
                         {kOut, args.operands[1]},
                         {kLse, args.operands[2]}});
              },
          .scratch_bytes = plan.scratch_bytes};
}

CudaKernel make_cuda_attention_backward(const OpSpec& spec, CudaContext& context) {
  return make_cuda_attention_backward(spec, context, AttentionBackwardOptions{});
}

CudaKernel make_cuda_attention_backward(const OpSpec& spec, CudaContext& context,
                                        const AttentionBackwardOptions& options) {
  const Layout layout(spec);
  check_supported(spec, layout);
  if (layout.sequence < 2) {
    throw_config_error(
        "attention on CUDA needs a sequence of at least 2 tokens for its backward, not {}",
        layout.sequence);
  }
  if (options.method.value_or(attention_backward_method(layout)) == AttentionMethod::kSm90) {
    return make_attention_backward_sm90(spec, context);
  }
  const AttentionCall call = attention_backward_call(layout, options);
  const Plan plan = backward_plan(spec, context, layout, call, options.repeatable);
  return {.launch =
              [plan, layout, call, &context](const CudaKernelArgs& args) {
                run_backward(plan, context, layout, call, args);
              },
          .scratch_bytes = plan.scratch_bytes};
}

}  // namespace braid
