#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/context_shard.h"
#include "model/hf_tensors.h"
#include "model/model_spec.h"
#include "model/parameter_list.h"
#include "model/tensor_shard.h"
#include "ops/graph.h"

namespace braid {

class BlockBuilder;  // model/block_builder.h

enum class BlockRole : uint8_t {
  kMixer,        ///< mixes the tokens of a sequence
  kFeedForward,  ///< works on each token alone
};

/// A size of a model, and its key in [model].
struct SizeKey {
  std::string_view name;
  int64_t ModelSpec::*size = nullptr;
};

/// Cost of a block, a layer or all layers of a model for one microbatch, per token.
struct BlockCost {
  double weights = 0;  ///< multiplications with weights in the forward: elements of matrices
  double mixing = 0;   ///< multiplications between tokens in the forward
  double mixing_backward = 0;  ///< the same in the backward
  double kept_elems = 0;       ///< of activations from the forward to the backward
  double widest = 0;           ///< elements of the widest activation

  void add(const BlockCost& other, double times = 1);
};

/// What a check of context ranks needs beside the ranks.
struct ContextLimits {
  int64_t sequence = 0;
  int64_t nearest_inner = 1;  ///< the nearest number of inner ranks that can exchange heads
};

/// Everything braid knows about one kind of block, which adds to the residual stream of a layer
/// after a norm "<name>_norm". Names of its parameters and sites begin with its name and a dot,
/// those of a block that is another one with other limits with the name of that one, so that both
/// have the same weights. Each block has one line in registry.cpp, and one folder in model/blocks.
struct BlockDefinition {
  std::string_view name;             ///< also its word in model.pattern: "attention"
  std::string_view variant_of = {};  ///< the block whose weights it has; empty: its own
  BlockRole role = BlockRole::kMixer;
  bool carries_state = false;   ///< over all earlier tokens of a sequence, of any document
  bool takes_adapters = false;  ///< its matrices may have adapters (model/lora.h)
  /// Some of its matrices are whole on each tensor rank, which multiplies only the rows that it
  /// has.
  bool multiplies_own_rows = false;
  /// Sizes that the block needs and that nothing derives. A run file or its preset must give them
  /// if a layer has the block.
  std::span<const SizeKey> needed_sizes = {};
  /// Derives the block's sizes that are 0 from other sizes. Also called for models without the
  /// block, which may lack `needed_sizes`. Null: there is nothing to derive.
  void (*derive_sizes)(ModelSpec& spec) = nullptr;
  /// Throws ConfigError naming key, value and limit if the block cannot have these sizes.
  void (*check_sizes)(const ModelSpec& spec) = nullptr;
  /// Why `ranks` tensor ranks cannot share the block: "must divide model.ffn = 96"; nullopt if they
  /// can.
  std::optional<std::string> (*tensor_fault)(const ModelSpec& spec, int64_t ranks) = nullptr;
  /// The number of a tensor rank's heads that context ranks must divide if they exchange heads.
  /// Null if tokens do not depend on each other.
  int64_t (*exchanged_heads)(const ModelSpec& spec, const TensorShard& tensor) = nullptr;
  /// Throws ConfigError naming the rule, the values and the nearest that fits if context ranks
  /// cannot share the block. Null: they always can.
  void (*check_context)(const ModelSpec& spec, const TensorShard& tensor,
                        const ContextShard& context, const ContextLimits& limits) = nullptr;
  /// Adds the block's parameters, without those of the norm, to the unit of its layer.
  void (*add_parameters)(ParameterList& list, const ModelSpec& spec) = nullptr;
  /// From [N, C], or a rank's rows of it, to the same shape: what the block adds to the residual
  /// stream.
  ValueId (*forward)(BlockBuilder& builder, ValueId x) = nullptr;
  BlockCost (*cost)(const ModelSpec& spec, int64_t sequence) = nullptr;
  /// Adds the tensors of norm and parameters under their names in files of this naming. Throws
  /// ConfigError naming the key if such files have no such block.
  void (*add_hf_tensors)(HfTensorList& list, const ModelSpec& spec, HfNaming naming) = nullptr;
};

}  // namespace braid
