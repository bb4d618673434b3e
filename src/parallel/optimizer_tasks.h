#pragma once

#include <span>
#include <vector>

#include "parallel/muon_tasks.h"
#include "parallel/optimizer_options.h"
#include "parallel/parameter_layout.h"
#include "parallel/step_program.h"
#include "parallel/task_writer.h"
#include "parallel/unit_buffers.h"

namespace braid {

/// Adds the tasks that follow the backward: gradient norm over the whole model (each domain sums
/// its squares over its norm group), clipping, the update of the elements that this rank owns, and
/// the all-gather of updated weights. Adds persistent buffers per unit for the owned elements:
/// "main_weights" fp32 (unless the weights are fp32 and consist of exactly these elements),
/// "exp_avg" and "exp_avg_sq" (OptimizerOptions::moments_dtype), as many as the optimizer has, and
/// "ema" fp32 with OptimizerOptions::ema.
class OptimizerTasks {
 public:
  struct Options {
    OptimizerOptions optimizer;
    bool counts_tied_copy = true;  ///< true if the norm counts this rank's copy of tied embeddings
  };

  OptimizerTasks(TaskWriter& writer, const ParameterLayout& layout, UnitBuffers& units,
                 const Options& options);

  void clip();
  void update();

 private:
  /// Elements of a unit whose squares this rank sums.
  struct CountedPiece {
    size_t unit = 0;
    UnitRange range;
  };

  void add_state();
  bool has_main_weights(size_t unit) const;
  UpdateRule rule_of(size_t unit) const;
  OpSpec update_spec(size_t unit, const UpdateRun& run, bool has_param) const;
  std::vector<UnitRange> counted_ranges(size_t unit) const;
  std::vector<CountedPiece> counted_pieces(size_t domain) const;
  /// Adds tasks that compute the squared norm (f64) of the elements that this rank counts. Returns
  /// one range per domain, all in one buffer.
  std::vector<BufferRange> add_squared_norms();
  /// Sums the squared norms over the norm group of each domain. Returns the range of addends of the
  /// model's squared norm.
  BufferRange sum_over_ranks(std::span<const BufferRange> of_domains);
  Label clip_label(Phase phase);
  void add_op(const OpSpec& spec, std::span<const BufferRange> ranges, const Label& label);
  void update_run(size_t unit, const UpdateRun& run, UnitRange range);
  void balance_range(size_t unit, UnitRange range);
  void publish(size_t unit);
  void average(size_t unit);

  TaskWriter& writer_;
  const ParameterLayout& layout_;
  UnitBuffers& units_;
  Options options_;
  MuonTasks muon_;
  std::vector<UnitBuffer> main_weights_;  // by unit; the params buffer itself if weights are their
                                          // own main weights
  std::vector<UnitBuffer> exp_avg_;
  std::vector<UnitBuffer> exp_avg_sq_;
  std::vector<UnitBuffer> averages_;
  BufferId scalars_;
  BufferId grad_norm_;
  BufferId grad_scale_;
};

}  // namespace braid
