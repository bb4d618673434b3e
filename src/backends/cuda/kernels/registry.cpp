#include <algorithm>
#include <array>
#include <string_view>

#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/factories.h"
#include "base/errors.h"

namespace braid {
namespace {

struct KernelEntry {
  std::string_view op;
  CudaKernel (*make)(const OpSpec& spec, CudaContext& context);
};

/// The ops that have a CUDA kernel.
constexpr std::array kKernels = {
    KernelEntry{"swiglu", make_cuda_swiglu},
    KernelEntry{"swiglu_backward", make_cuda_swiglu_backward},
    KernelEntry{"gelu", make_cuda_gelu},
    KernelEntry{"gelu_backward", make_cuda_gelu_backward},
    KernelEntry{"geglu", make_cuda_geglu},
    KernelEntry{"geglu_backward", make_cuda_geglu_backward},
    KernelEntry{"scale", make_cuda_scale},
    KernelEntry{"relu2", make_cuda_relu2},
    KernelEntry{"relu2_backward", make_cuda_relu2_backward},
#ifdef BRAID_HAS_CUDA_ATTENTION  // cudnn-frontend was found
    KernelEntry{"attention", make_cuda_attention},
    KernelEntry{"attention_backward", make_cuda_attention_backward},
    KernelEntry{"attention_step", make_cuda_attention_step},
    KernelEntry{"attention_step_backward", make_cuda_attention_step_backward},
#endif
    KernelEntry{"attention_finish", make_cuda_cast},
    KernelEntry{"pack_kv", make_cuda_pack_kv},
    KernelEntry{"assemble_qkv", make_cuda_assemble_qkv},
    KernelEntry{"zigzag_order", make_cuda_zigzag_order},
    KernelEntry{"split_heads", make_cuda_split_heads},
    KernelEntry{"swap_blocks", make_cuda_swap_blocks},
    KernelEntry{"cross_entropy", make_cuda_cross_entropy},
    KernelEntry{"cross_entropy_partial", make_cuda_cross_entropy_partial},
    KernelEntry{"cross_entropy_merge", make_cuda_cross_entropy_merge},
    KernelEntry{"cross_entropy_backward", make_cuda_cross_entropy_backward},
    KernelEntry{"sequence_losses", make_cuda_sequence_losses},
    KernelEntry{"preference_loss", make_cuda_preference_loss},
    KernelEntry{"add", make_cuda_add},
    KernelEntry{"add_gated", make_cuda_add_gated},
    KernelEntry{"add_gated_backward", make_cuda_add_gated_backward},
    KernelEntry{"add_adapters", make_cuda_add_adapters},
    KernelEntry{"adapter_grad", make_cuda_adapter_grad},
    KernelEntry{"adapted_squares", make_cuda_adapted_squares},
    KernelEntry{"apply_magnitudes", make_cuda_apply_magnitudes},
    KernelEntry{"apply_magnitudes_backward", make_cuda_apply_magnitudes_backward},
    KernelEntry{"accumulate", make_cuda_accumulate},
    KernelEntry{"cast", make_cuda_cast},
    KernelEntry{"copy", make_cuda_copy},
    KernelEntry{"identity", make_cuda_copy},
    KernelEntry{"fill", make_cuda_fill},
    KernelEntry{"sum_blocks", make_cuda_sum_blocks},
    KernelEntry{"largest_of_blocks", make_cuda_largest_of_blocks},
    KernelEntry{"join_columns", make_cuda_join_columns},
    KernelEntry{"join_blocks", make_cuda_join_blocks},
    KernelEntry{"embedding", make_cuda_embedding},
    KernelEntry{"embedding_wgrad", make_cuda_embedding_wgrad},
    KernelEntry{"position_embedding_wgrad", make_cuda_position_embedding_wgrad},
    KernelEntry{"linear", make_cuda_linear},
    KernelEntry{"linear_dgrad", make_cuda_linear_dgrad},
    KernelEntry{"linear_wgrad", make_cuda_linear_wgrad},
    KernelEntry{"linear_swiglu", make_cuda_linear_swiglu},
    KernelEntry{"linear_dgrad_swiglu_backward", make_cuda_linear_dgrad_swiglu_backward},
    KernelEntry{"grouped_linear_swiglu", make_cuda_grouped_linear_swiglu},
    KernelEntry{"grouped_linear_dgrad_swiglu_backward",
                make_cuda_grouped_linear_dgrad_swiglu_backward},
    KernelEntry{"sort_rows", make_cuda_sort_rows},
    KernelEntry{"drop_rows", make_cuda_drop_rows},
    KernelEntry{"host_slots", make_cuda_host_slots},
    KernelEntry{"rows_to_blocks", make_cuda_rows_to_blocks},
    KernelEntry{"blocks_to_rows", make_cuda_blocks_to_rows},
    KernelEntry{"gather_rows", make_cuda_gather_rows},
    KernelEntry{"permute_elems", make_cuda_permute_elems},
    KernelEntry{"sum_rows", make_cuda_sum_rows},
    KernelEntry{"routed_swiglu", make_cuda_routed_swiglu},
    KernelEntry{"routed_swiglu_backward", make_cuda_routed_swiglu_backward},
    KernelEntry{"routed_relu2", make_cuda_routed_relu2},
    KernelEntry{"routed_relu2_backward", make_cuda_routed_relu2_backward},
    KernelEntry{"grouped_linear", make_cuda_grouped_linear},
    KernelEntry{"grouped_linear_dgrad", make_cuda_grouped_linear_dgrad},
    KernelEntry{"grouped_linear_wgrad", make_cuda_grouped_linear_wgrad},
    KernelEntry{"rmsnorm", make_cuda_rmsnorm},
    KernelEntry{"add_rmsnorm", make_cuda_add_rmsnorm},
    KernelEntry{"rmsnorm_backward", make_cuda_rmsnorm_backward},
    KernelEntry{"layernorm", make_cuda_layernorm},
    KernelEntry{"add_layernorm", make_cuda_add_layernorm},
    KernelEntry{"layernorm_backward", make_cuda_layernorm_backward},
    KernelEntry{"squared_norm", make_cuda_squared_norm},
    KernelEntry{"matrix_squares", make_cuda_squared_norm},
    KernelEntry{"sum", make_cuda_sum},
    KernelEntry{"clip_scale", make_cuda_clip_scale},
    KernelEntry{"adamw", make_cuda_adamw},
    KernelEntry{"lion", make_cuda_lion},
    KernelEntry{"sgd", make_cuda_sgd},
    KernelEntry{"muon_mean", make_cuda_muon_mean},
    KernelEntry{"take_matrix", make_cuda_take_matrix},
    KernelEntry{"put_matrix", make_cuda_put_matrix},
    KernelEntry{"normalize", make_cuda_normalize},
    KernelEntry{"weighted_sum", make_cuda_weighted_sum},
    KernelEntry{"muon_update", make_cuda_muon_update},
    KernelEntry{"balance_update", make_cuda_balance_update},
    KernelEntry{"average_weights", make_cuda_average_weights},
    KernelEntry{"quantize", make_cuda_quantize},
    KernelEntry{"quantize_weight", make_cuda_quantize},
    KernelEntry{"part_magnitudes", make_cuda_part_magnitudes},
    KernelEntry{"quantize_part", make_cuda_quantize_part},
    KernelEntry{"quantize_grouped", make_cuda_quantize_grouped},
    KernelEntry{"quantize_gathered", make_cuda_quantize_gathered},
    KernelEntry{"transpose_grouped", make_cuda_transpose_grouped},
    KernelEntry{"scales_of_magnitudes", make_cuda_scales_of_magnitudes},
    KernelEntry{"transpose", make_cuda_transpose},
    KernelEntry{"rope", make_cuda_rope},
    KernelEntry{"mla_qkv", make_cuda_mla_qkv},
    KernelEntry{"mla_qkv_backward", make_cuda_mla_qkv_backward},
    KernelEntry{"take_columns", make_cuda_take_columns},
    KernelEntry{"put_columns", make_cuda_put_columns},
    KernelEntry{"scaled_linear", make_cuda_scaled_linear},
    KernelEntry{"scaled_linear_dgrad", make_cuda_scaled_linear_dgrad},
    KernelEntry{"scaled_linear_wgrad", make_cuda_scaled_linear_wgrad},
    KernelEntry{"scaled_grouped_linear", make_cuda_scaled_grouped_linear},
    KernelEntry{"scaled_grouped_linear_dgrad", make_cuda_scaled_grouped_linear_dgrad},
    KernelEntry{"scaled_grouped_linear_wgrad", make_cuda_scaled_grouped_linear_wgrad},
    KernelEntry{"router_linear", make_cuda_router_linear},
    KernelEntry{"router_linear_dgrad", make_cuda_router_linear_dgrad},
    KernelEntry{"router_linear_wgrad", make_cuda_router_linear_wgrad},
    KernelEntry{"route", make_cuda_route},
    KernelEntry{"route_backward", make_cuda_route_backward},
    KernelEntry{"count_choices", make_cuda_count_choices},
    KernelEntry{"count_by_sequence", make_cuda_count_by_sequence},
    KernelEntry{"router_losses", make_cuda_router_losses},
    KernelEntry{"router_losses_backward", make_cuda_router_losses_backward},
    KernelEntry{"head_norm", make_cuda_head_norm},
    KernelEntry{"head_norm_backward", make_cuda_head_norm_backward},
    KernelEntry{"cached_attention", make_cuda_cached_attention},
    KernelEntry{"cached_mamba2", make_cuda_cached_mamba2},
    KernelEntry{"mamba2", make_cuda_mamba2},
    KernelEntry{"mamba2_backward", make_cuda_mamba2_backward},
    KernelEntry{"mamba2_last_inputs", make_cuda_mamba2_last_inputs},
    KernelEntry{"mamba2_add_inputs", make_cuda_mamba2_add_inputs},
    KernelEntry{"mamba2_section_states", make_cuda_mamba2_section_states},
    KernelEntry{"mamba2_section", make_cuda_mamba2_section},
    KernelEntry{"mamba2_section_state_grads", make_cuda_mamba2_section_state_grads},
    KernelEntry{"mamba2_section_backward", make_cuda_mamba2_section_backward},
    KernelEntry{"neighbour_sections", make_cuda_neighbour_sections},
    KernelEntry{"carry_states", make_cuda_carry_states},
    KernelEntry{"offload", make_cuda_offload},
    KernelEntry{"reload", make_cuda_reload},
};

}  // namespace

CudaKernel make_cuda_kernel(const OpSpec& spec, CudaContext& context) {
  const auto* const entry = std::find_if(kKernels.begin(), kKernels.end(),
                                         [&](const KernelEntry& e) { return e.op == spec.op; });
  check(entry != kKernels.end(), "there is no CUDA kernel for op {}", spec.op);
  return entry->make(spec, context);
}

CudaKernel make_fastest_cuda_kernel(const OpSpec& spec, CudaContext& context) {
#ifdef BRAID_HAS_CUDA_ATTENTION
  if (spec.op == "attention_backward") {
    return make_cuda_attention_backward(spec, context, {.repeatable = false});
  }
  if (spec.op == "attention_step_backward") {
    return make_cuda_attention_step_backward(spec, context, {.repeatable = false});
  }
#endif
  return make_cuda_kernel(spec, context);
}

}  // namespace braid
