#pragma once

#include <memory>

#include "sim/cost_model.h"

namespace braid {

/// Prices from the data sheet and measured fractions of it (DeviceSpec, FabricSpec).
///
/// A matrix product is cut into tiles, each computed by one block; blocks run in waves of one per
/// SM, and the last wave takes as long as a full one (tile and wave quantisation: NVIDIA, Matrix
/// Multiplication Background, sections 3.1 and 3.2). The model takes the fastest of all tiles t_r x
/// t_c and splits s of the depth:
///
///   waves = ceil(ceil(rows / t_r) ceil(columns / t_c) s / SMs)
///   ns    = max(waves (fill + 2 t_r t_c (depth / s) / (rate of an SM * e(tile))) + sums of s
///   parts,
///               bytes / bandwidth) + launch
///
/// Attention: flops of the causal half over peak * fraction * head size / padded head size *
/// sequence / (sequence + half) * blocks / (blocks + SMs), with the head size's AttentionRate.
/// About one wave is lost, because blocks of causal rows differ in length. A product with an
/// activation function: `fused_product_ns`, but at least the time of its own bytes. All other ops:
/// bytes over bandwidth, plus launch. Communication: alpha + beta per step of the algorithm, with
/// NCCL's latencies.
std::unique_ptr<CostModel> make_analytic_model(Cluster cluster);

/// The parts of the model, in fractional nanoseconds, for models that correct them by measurements.
double analytic_task_ns(const DeviceSpec& device, const OpSpec& spec);
/// A product with SwiGLU in its epilogue (ops/linear_swiglu.h), from the times of its two ops
/// alone. On Hopper, which has such kernels, slightly more than the product; elsewhere the sum of
/// both.
double fused_product_ns(const DeviceSpec& device, const OpSpec& spec, double product_ns,
                        double activation_ns);
/// Whether the blocks of a kernel stay on their SMs to its end, and it can leave some of them to
/// others: on Hopper products of groups, and products with SwiGLU in their epilogue.
bool stays_on_its_sms(const DeviceSpec& device, const OpSpec& spec);
/// The time of such a kernel without `sms` of the SMs, relative to its time on all of them. Less
/// than in proportion where the power limit bounds the product.
double slowdown_by_left_sms(const DeviceSpec& device, const OpSpec& spec, int sms);
double analytic_comm_ns(const Cluster& cluster, const CommSpec& spec);
double analytic_host_copy_ns(const DeviceSpec& device, int64_t bytes);

/// The fractions of the links' rates that a communication uses on each of its ranks while its bytes
/// flow, in each direction in which it moves bytes: between devices of a node, between nodes, and
/// of a device's share of the links above the units of the network, if it leaves one. It uses the
/// slowest kind fully.
struct LinkLoad {
  double intra_node = 0;
  double inter_node = 0;
  double above_units = 0;
};
LinkLoad analytic_link_load(const Cluster& cluster, const CommSpec& spec);

/// Measured on 8 x H200 (docs/profiles.md).
Contention default_contention();

}  // namespace braid
