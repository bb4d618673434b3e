#pragma once

#include "backends/cpu/kernel.h"

/// One factory per op, defined in the file of the op's name; `make_cpu_kernel` finds them by name.
/// The spec has passed the op's own check. Throws InternalError for dtypes without a kernel.
namespace braid {

CpuKernel make_swiglu(const OpSpec& spec, int num_workers);
CpuKernel make_swiglu_backward(const OpSpec& spec, int num_workers);
CpuKernel make_gelu(const OpSpec& spec, int num_workers);
CpuKernel make_gelu_backward(const OpSpec& spec, int num_workers);
CpuKernel make_geglu(const OpSpec& spec, int num_workers);
CpuKernel make_geglu_backward(const OpSpec& spec, int num_workers);
CpuKernel make_scale(const OpSpec& spec, int num_workers);
CpuKernel make_relu2(const OpSpec& spec, int num_workers);
CpuKernel make_relu2_backward(const OpSpec& spec, int num_workers);

CpuKernel make_attention(const OpSpec& spec, int num_workers);
CpuKernel make_attention_backward(const OpSpec& spec, int num_workers);
CpuKernel make_attention_step(const OpSpec& spec, int num_workers);
CpuKernel make_attention_step_backward(const OpSpec& spec, int num_workers);
CpuKernel make_attention_finish(const OpSpec& spec, int num_workers);

CpuKernel make_pack_kv(const OpSpec& spec, int num_workers);
CpuKernel make_assemble_qkv(const OpSpec& spec, int num_workers);
CpuKernel make_zigzag_order(const OpSpec& spec, int num_workers);
CpuKernel make_split_heads(const OpSpec& spec, int num_workers);
CpuKernel make_swap_blocks(const OpSpec& spec, int num_workers);

CpuKernel make_cross_entropy(const OpSpec& spec, int num_workers);
CpuKernel make_cross_entropy_partial(const OpSpec& spec, int num_workers);
CpuKernel make_cross_entropy_merge(const OpSpec& spec, int num_workers);
CpuKernel make_cross_entropy_backward(const OpSpec& spec, int num_workers);

CpuKernel make_sequence_losses(const OpSpec& spec, int num_workers);
CpuKernel make_preference_loss(const OpSpec& spec, int num_workers);

CpuKernel make_add(const OpSpec& spec, int num_workers);
CpuKernel make_add_gated(const OpSpec& spec, int num_workers);
CpuKernel make_add_gated_backward(const OpSpec& spec, int num_workers);
CpuKernel make_add_adapters(const OpSpec& spec, int num_workers);
CpuKernel make_adapter_grad(const OpSpec& spec, int num_workers);
CpuKernel make_adapted_squares(const OpSpec& spec, int num_workers);
CpuKernel make_apply_magnitudes(const OpSpec& spec, int num_workers);
CpuKernel make_apply_magnitudes_backward(const OpSpec& spec, int num_workers);
CpuKernel make_accumulate(const OpSpec& spec, int num_workers);
CpuKernel make_cast(const OpSpec& spec, int num_workers);
CpuKernel make_copy(const OpSpec& spec, int num_workers);  // also for identity
CpuKernel make_fill(const OpSpec& spec, int num_workers);

CpuKernel make_sum_blocks(const OpSpec& spec, int num_workers);
CpuKernel make_largest_of_blocks(const OpSpec& spec, int num_workers);
CpuKernel make_join_columns(const OpSpec& spec, int num_workers);
CpuKernel make_join_blocks(const OpSpec& spec, int num_workers);

CpuKernel make_embedding(const OpSpec& spec, int num_workers);
CpuKernel make_embedding_wgrad(const OpSpec& spec, int num_workers);
CpuKernel make_position_embedding_wgrad(const OpSpec& spec, int num_workers);

CpuKernel make_linear(const OpSpec& spec, int num_workers);
CpuKernel make_linear_dgrad(const OpSpec& spec, int num_workers);
CpuKernel make_linear_wgrad(const OpSpec& spec, int num_workers);

CpuKernel make_sort_rows(const OpSpec& spec, int num_workers);
CpuKernel make_drop_rows(const OpSpec& spec, int num_workers);
CpuKernel make_host_slots(const OpSpec& spec, int num_workers);
CpuKernel make_rows_to_blocks(const OpSpec& spec, int num_workers);
CpuKernel make_blocks_to_rows(const OpSpec& spec, int num_workers);
CpuKernel make_gather_rows(const OpSpec& spec, int num_workers);
CpuKernel make_sum_rows(const OpSpec& spec, int num_workers);
CpuKernel make_permute_elems(const OpSpec& spec, int num_workers);
CpuKernel make_routed_swiglu(const OpSpec& spec, int num_workers);
CpuKernel make_routed_swiglu_backward(const OpSpec& spec, int num_workers);
CpuKernel make_routed_relu2(const OpSpec& spec, int num_workers);
CpuKernel make_routed_relu2_backward(const OpSpec& spec, int num_workers);

CpuKernel make_grouped_linear(const OpSpec& spec, int num_workers);
CpuKernel make_grouped_linear_dgrad(const OpSpec& spec, int num_workers);
CpuKernel make_grouped_linear_wgrad(const OpSpec& spec, int num_workers);

CpuKernel make_quantize(const OpSpec& spec, int num_workers);  // also for quantize_weight
CpuKernel make_quantize_grouped(const OpSpec& spec, int num_workers);
CpuKernel make_quantize_gathered(const OpSpec& spec, int num_workers);
CpuKernel make_transpose_grouped(const OpSpec& spec, int num_workers);
CpuKernel make_part_magnitudes(const OpSpec& spec, int num_workers);
CpuKernel make_quantize_part(const OpSpec& spec, int num_workers);
CpuKernel make_scales_of_magnitudes(const OpSpec& spec, int num_workers);
CpuKernel make_transpose(const OpSpec& spec, int num_workers);
CpuKernel make_scaled_linear(const OpSpec& spec, int num_workers);
CpuKernel make_scaled_linear_dgrad(const OpSpec& spec, int num_workers);
CpuKernel make_scaled_linear_wgrad(const OpSpec& spec, int num_workers);
CpuKernel make_scaled_grouped_linear(const OpSpec& spec, int num_workers);
CpuKernel make_scaled_grouped_linear_dgrad(const OpSpec& spec, int num_workers);
CpuKernel make_scaled_grouped_linear_wgrad(const OpSpec& spec, int num_workers);

CpuKernel make_linear_swiglu(const OpSpec& spec, int num_workers);
CpuKernel make_linear_dgrad_swiglu_backward(const OpSpec& spec, int num_workers);
CpuKernel make_grouped_linear_swiglu(const OpSpec& spec, int num_workers);
CpuKernel make_grouped_linear_dgrad_swiglu_backward(const OpSpec& spec, int num_workers);

CpuKernel make_rmsnorm(const OpSpec& spec, int num_workers);
CpuKernel make_add_rmsnorm(const OpSpec& spec, int num_workers);
CpuKernel make_rmsnorm_backward(const OpSpec& spec, int num_workers);
CpuKernel make_layernorm(const OpSpec& spec, int num_workers);
CpuKernel make_add_layernorm(const OpSpec& spec, int num_workers);
CpuKernel make_layernorm_backward(const OpSpec& spec, int num_workers);

CpuKernel make_squared_norm(const OpSpec& spec, int num_workers);
CpuKernel make_sum(const OpSpec& spec, int num_workers);
CpuKernel make_clip_scale(const OpSpec& spec, int num_workers);
CpuKernel make_adamw(const OpSpec& spec, int num_workers);
CpuKernel make_lion(const OpSpec& spec, int num_workers);
CpuKernel make_sgd(const OpSpec& spec, int num_workers);
CpuKernel make_muon_mean(const OpSpec& spec, int num_workers);
CpuKernel make_take_matrix(const OpSpec& spec, int num_workers);
CpuKernel make_put_matrix(const OpSpec& spec, int num_workers);
CpuKernel make_normalize(const OpSpec& spec, int num_workers);
CpuKernel make_weighted_sum(const OpSpec& spec, int num_workers);
CpuKernel make_muon_update(const OpSpec& spec, int num_workers);
CpuKernel make_balance_update(const OpSpec& spec, int num_workers);
CpuKernel make_average_weights(const OpSpec& spec, int num_workers);

CpuKernel make_rope(const OpSpec& spec, int num_workers);

CpuKernel make_cached_attention(const OpSpec& spec, int num_workers);
CpuKernel make_cached_mamba2(const OpSpec& spec, int num_workers);

CpuKernel make_mamba2(const OpSpec& spec, int num_workers);
CpuKernel make_mamba2_backward(const OpSpec& spec, int num_workers);
CpuKernel make_mamba2_last_inputs(const OpSpec& spec, int num_workers);
CpuKernel make_mamba2_add_inputs(const OpSpec& spec, int num_workers);
CpuKernel make_mamba2_section_states(const OpSpec& spec, int num_workers);
CpuKernel make_mamba2_section(const OpSpec& spec, int num_workers);
CpuKernel make_mamba2_section_state_grads(const OpSpec& spec, int num_workers);
CpuKernel make_mamba2_section_backward(const OpSpec& spec, int num_workers);
CpuKernel make_neighbour_sections(const OpSpec& spec, int num_workers);
CpuKernel make_carry_states(const OpSpec& spec, int num_workers);

CpuKernel make_mla_qkv(const OpSpec& spec, int num_workers);
CpuKernel make_mla_qkv_backward(const OpSpec& spec, int num_workers);
CpuKernel make_take_columns(const OpSpec& spec, int num_workers);
CpuKernel make_put_columns(const OpSpec& spec, int num_workers);

CpuKernel make_router_linear(const OpSpec& spec, int num_workers);
CpuKernel make_router_linear_dgrad(const OpSpec& spec, int num_workers);
CpuKernel make_router_linear_wgrad(const OpSpec& spec, int num_workers);
CpuKernel make_route(const OpSpec& spec, int num_workers);
CpuKernel make_route_backward(const OpSpec& spec, int num_workers);
CpuKernel make_count_choices(const OpSpec& spec, int num_workers);
CpuKernel make_count_by_sequence(const OpSpec& spec, int num_workers);
CpuKernel make_router_losses(const OpSpec& spec, int num_workers);
CpuKernel make_router_losses_backward(const OpSpec& spec, int num_workers);

CpuKernel make_head_norm(const OpSpec& spec, int num_workers);
CpuKernel make_head_norm_backward(const OpSpec& spec, int num_workers);

CpuKernel make_offload(const OpSpec& spec, int num_workers);
CpuKernel make_reload(const OpSpec& spec, int num_workers);

}  // namespace braid
