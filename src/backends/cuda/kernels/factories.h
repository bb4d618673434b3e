#pragma once

#include "backends/cuda/kernel.h"

/// One factory per op, defined in the file of the op's name; `make_cuda_kernel` finds them by name.
/// The spec has passed the op's own check. Throws InternalError for dtypes without a kernel.
namespace braid {

CudaKernel make_cuda_swiglu(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_swiglu_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_gelu(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_gelu_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_geglu(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_geglu_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_scale(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_relu2(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_relu2_backward(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_attention(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_attention_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_attention_step(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_attention_step_backward(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_pack_kv(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_assemble_qkv(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_zigzag_order(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_split_heads(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_swap_blocks(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_cross_entropy(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_cross_entropy_partial(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_cross_entropy_merge(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_cross_entropy_backward(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_sequence_losses(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_preference_loss(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_add(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_add_gated(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_add_gated_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_add_adapters(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_adapter_grad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_adapted_squares(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_apply_magnitudes(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_apply_magnitudes_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_accumulate(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_cast(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_copy(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_fill(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_sum_blocks(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_largest_of_blocks(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_join_columns(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_join_blocks(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_embedding(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_embedding_wgrad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_position_embedding_wgrad(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_linear(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_linear_dgrad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_linear_wgrad(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_sort_rows(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_drop_rows(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_host_slots(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_rows_to_blocks(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_blocks_to_rows(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_gather_rows(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_sum_rows(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_permute_elems(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_routed_swiglu(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_routed_swiglu_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_routed_relu2(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_routed_relu2_backward(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_grouped_linear(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_grouped_linear_dgrad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_grouped_linear_wgrad(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_linear_swiglu(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_linear_dgrad_swiglu_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_grouped_linear_swiglu(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_grouped_linear_dgrad_swiglu_backward(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_rmsnorm(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_add_rmsnorm(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_rmsnorm_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_layernorm(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_add_layernorm(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_layernorm_backward(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_squared_norm(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_sum(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_clip_scale(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_adamw(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_lion(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_sgd(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_muon_mean(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_take_matrix(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_put_matrix(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_normalize(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_weighted_sum(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_muon_update(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_balance_update(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_average_weights(const OpSpec& spec, CudaContext& context);

/// Of quantize and quantize_weight.
CudaKernel make_cuda_quantize(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_quantize_grouped(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_quantize_gathered(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_transpose_grouped(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_part_magnitudes(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_quantize_part(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_scales_of_magnitudes(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_transpose(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_rope(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mla_qkv(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mla_qkv_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_take_columns(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_put_columns(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_scaled_linear(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_scaled_linear_dgrad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_scaled_linear_wgrad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_scaled_grouped_linear(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_scaled_grouped_linear_dgrad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_scaled_grouped_linear_wgrad(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_router_linear(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_router_linear_dgrad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_router_linear_wgrad(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_route(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_route_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_count_choices(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_count_by_sequence(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_router_losses(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_router_losses_backward(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_head_norm(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_head_norm_backward(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_cached_attention(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_cached_mamba2(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_mamba2(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mamba2_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mamba2_last_inputs(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mamba2_add_inputs(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mamba2_section_states(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mamba2_section(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mamba2_section_state_grads(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_mamba2_section_backward(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_neighbour_sections(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_carry_states(const OpSpec& spec, CudaContext& context);

CudaKernel make_cuda_offload(const OpSpec& spec, CudaContext& context);
CudaKernel make_cuda_reload(const OpSpec& spec, CudaContext& context);

}  // namespace braid
