#pragma once

#include <span>
#include <vector>

#include "parallel/parameter_layout.h"
#include "parallel/step_program.h"
#include "parallel/task_writer.h"
#include "parallel/unit_buffers.h"

namespace braid {

/// Adds what follows the backward: the gradient norm over the whole model (the squares of each
/// domain are summed over its norm group), clipping, AdamW on what this rank owns, and the
/// gathering of updated weights. Persistent buffers per unit, of the elements that the rank owns:
/// "main_weights" fp32 (where the weights themselves are not fp32 and just those elements),
/// "exp_avg", "exp_avg_sq".
class OptimizerTasks {
 public:
  struct Options {
    OptimizerOptions optimizer;
    bool counts_tied_copy = true;  ///< whether a copy of tied embeddings here is the one that
                                   ///< counts in the norm
  };

  OptimizerTasks(TaskWriter& writer, const ParameterLayout& layout, UnitBuffers& units,
                 const Options& options);

  void clip();
  void update();

 private:
  /// Elements of a unit whose squares this rank adds up.
  struct CountedPiece {
    size_t unit = 0;
    UnitRange range;
  };

  void add_state();
  bool has_main_weights(size_t unit) const;
  std::vector<UnitRange> counted_ranges(size_t unit) const;
  std::vector<CountedPiece> counted_pieces(size_t domain) const;
  /// Squared norms (f64) of what this rank counts: by domain, where they lie in one buffer.
  std::vector<BufferRange> add_squared_norms();
  /// Sums them over the norm group of each domain. Returns what adds up to the squared norm of the
  /// model.
  BufferRange sum_over_ranks(std::span<const BufferRange> of_domains);
  Label clip_label(Phase phase);
  void add_op(const OpSpec& spec, std::span<const BufferRange> ranges, const Label& label);
  void update_range(size_t unit, UnitRange range, double weight_decay);

  TaskWriter& writer_;
  const ParameterLayout& layout_;
  UnitBuffers& units_;
  Options options_;
  std::vector<UnitBuffer> main_weights_;  // by unit; the params themselves where these are fp32
  std::vector<UnitBuffer> exp_avg_;
  std::vector<UnitBuffer> exp_avg_sq_;
  BufferId scalars_;
  BufferId grad_norm_;
  BufferId grad_scale_;
};

}  // namespace braid
