#include <algorithm>
#include <array>
#include <string_view>

#include "backends/cpu/kernel.h"
#include "backends/cpu/kernels/factories.h"
#include "base/errors.h"

namespace braid {
namespace {

struct KernelEntry {
  std::string_view op;
  CpuKernel (*make)(const OpSpec& spec, int num_workers);
};

constexpr std::array kKernels = {
    KernelEntry{"swiglu", make_swiglu},
    KernelEntry{"swiglu_backward", make_swiglu_backward},
    KernelEntry{"gelu", make_gelu},
    KernelEntry{"gelu_backward", make_gelu_backward},
    KernelEntry{"relu2", make_relu2},
    KernelEntry{"relu2_backward", make_relu2_backward},
    KernelEntry{"attention", make_attention},
    KernelEntry{"attention_backward", make_attention_backward},
    KernelEntry{"attention_step", make_attention_step},
    KernelEntry{"attention_step_backward", make_attention_step_backward},
    KernelEntry{"attention_finish", make_attention_finish},
    KernelEntry{"pack_kv", make_pack_kv},
    KernelEntry{"assemble_qkv", make_assemble_qkv},
    KernelEntry{"zigzag_order", make_zigzag_order},
    KernelEntry{"split_heads", make_split_heads},
    KernelEntry{"swap_blocks", make_swap_blocks},
    KernelEntry{"cross_entropy", make_cross_entropy},
    KernelEntry{"cross_entropy_partial", make_cross_entropy_partial},
    KernelEntry{"cross_entropy_merge", make_cross_entropy_merge},
    KernelEntry{"cross_entropy_backward", make_cross_entropy_backward},
    KernelEntry{"add", make_add},
    KernelEntry{"add_gated", make_add_gated},
    KernelEntry{"add_gated_backward", make_add_gated_backward},
    KernelEntry{"add_adapters", make_add_adapters},
    KernelEntry{"adapter_grad", make_adapter_grad},
    KernelEntry{"adapted_squares", make_adapted_squares},
    KernelEntry{"apply_magnitudes", make_apply_magnitudes},
    KernelEntry{"apply_magnitudes_backward", make_apply_magnitudes_backward},
    KernelEntry{"accumulate", make_accumulate},
    KernelEntry{"cast", make_cast},
    KernelEntry{"copy", make_copy},
    KernelEntry{"identity", make_copy},
    KernelEntry{"fill", make_fill},
    KernelEntry{"sum_blocks", make_sum_blocks},
    KernelEntry{"join_columns", make_join_columns},
    KernelEntry{"join_blocks", make_join_blocks},
    KernelEntry{"embedding", make_embedding},
    KernelEntry{"embedding_wgrad", make_embedding_wgrad},
    KernelEntry{"position_embedding_wgrad", make_position_embedding_wgrad},
    KernelEntry{"linear", make_linear},
    KernelEntry{"linear_dgrad", make_linear_dgrad},
    KernelEntry{"linear_wgrad", make_linear_wgrad},
    KernelEntry{"sort_rows", make_sort_rows},
    KernelEntry{"drop_rows", make_drop_rows},
    KernelEntry{"gather_rows", make_gather_rows},
    KernelEntry{"permute_elems", make_permute_elems},
    KernelEntry{"sum_rows", make_sum_rows},
    KernelEntry{"routed_swiglu", make_routed_swiglu},
    KernelEntry{"routed_swiglu_backward", make_routed_swiglu_backward},
    KernelEntry{"routed_relu2", make_routed_relu2},
    KernelEntry{"routed_relu2_backward", make_routed_relu2_backward},
    KernelEntry{"grouped_linear", make_grouped_linear},
    KernelEntry{"grouped_linear_dgrad", make_grouped_linear_dgrad},
    KernelEntry{"grouped_linear_wgrad", make_grouped_linear_wgrad},
    KernelEntry{"quantize", make_quantize},
    KernelEntry{"quantize_weight", make_quantize},
    KernelEntry{"quantize_grouped", make_quantize_grouped},
    KernelEntry{"part_magnitudes", make_part_magnitudes},
    KernelEntry{"quantize_part", make_quantize_part},
    KernelEntry{"scales_of_magnitudes", make_scales_of_magnitudes},
    KernelEntry{"transpose", make_transpose},
    KernelEntry{"scaled_linear", make_scaled_linear},
    KernelEntry{"scaled_linear_dgrad", make_scaled_linear_dgrad},
    KernelEntry{"scaled_linear_wgrad", make_scaled_linear_wgrad},
    KernelEntry{"scaled_grouped_linear", make_scaled_grouped_linear},
    KernelEntry{"scaled_grouped_linear_dgrad", make_scaled_grouped_linear_dgrad},
    KernelEntry{"scaled_grouped_linear_wgrad", make_scaled_grouped_linear_wgrad},
    KernelEntry{"linear_swiglu", make_linear_swiglu},
    KernelEntry{"linear_dgrad_swiglu_backward", make_linear_dgrad_swiglu_backward},
    KernelEntry{"rmsnorm", make_rmsnorm},
    KernelEntry{"add_rmsnorm", make_add_rmsnorm},
    KernelEntry{"rmsnorm_backward", make_rmsnorm_backward},
    KernelEntry{"layernorm", make_layernorm},
    KernelEntry{"add_layernorm", make_add_layernorm},
    KernelEntry{"layernorm_backward", make_layernorm_backward},
    KernelEntry{"squared_norm", make_squared_norm},
    KernelEntry{"matrix_squares", make_squared_norm},
    KernelEntry{"sum", make_sum},
    KernelEntry{"clip_scale", make_clip_scale},
    KernelEntry{"adamw", make_adamw},
    KernelEntry{"lion", make_lion},
    KernelEntry{"sgd", make_sgd},
    KernelEntry{"muon_mean", make_muon_mean},
    KernelEntry{"take_matrix", make_take_matrix},
    KernelEntry{"put_matrix", make_put_matrix},
    KernelEntry{"normalize", make_normalize},
    KernelEntry{"weighted_sum", make_weighted_sum},
    KernelEntry{"muon_update", make_muon_update},
    KernelEntry{"balance_update", make_balance_update},
    KernelEntry{"average_weights", make_average_weights},
    KernelEntry{"rope", make_rope},
    KernelEntry{"cached_attention", make_cached_attention},
    KernelEntry{"cached_mamba2", make_cached_mamba2},
    KernelEntry{"mamba2", make_mamba2},
    KernelEntry{"mamba2_backward", make_mamba2_backward},
    KernelEntry{"mla_qkv", make_mla_qkv},
    KernelEntry{"mla_qkv_backward", make_mla_qkv_backward},
    KernelEntry{"take_columns", make_take_columns},
    KernelEntry{"put_columns", make_put_columns},
    KernelEntry{"router_linear", make_router_linear},
    KernelEntry{"router_linear_dgrad", make_router_linear_dgrad},
    KernelEntry{"router_linear_wgrad", make_router_linear_wgrad},
    KernelEntry{"route", make_route},
    KernelEntry{"route_backward", make_route_backward},
    KernelEntry{"count_choices", make_count_choices},
    KernelEntry{"count_by_sequence", make_count_by_sequence},
    KernelEntry{"router_losses", make_router_losses},
    KernelEntry{"router_losses_backward", make_router_losses_backward},
    KernelEntry{"head_norm", make_head_norm},
    KernelEntry{"head_norm_backward", make_head_norm_backward},
    KernelEntry{"offload", make_offload},
    KernelEntry{"reload", make_reload},
};

}  // namespace

CpuKernel make_cpu_kernel(const OpSpec& spec, int num_workers) {
  check(num_workers >= 1, "a kernel needs at least 1 worker, not {}", num_workers);
  const auto* const entry = std::find_if(kKernels.begin(), kKernels.end(),
                                         [&](const KernelEntry& e) { return e.op == spec.op; });
  check(entry != kKernels.end(), "there is no CPU kernel for op {}", spec.op);
  return entry->make(spec, num_workers);
}

}  // namespace braid
