#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/optimizer_options.h"
#include "parallel/parameter_layout.h"
#include "parallel/task_writer.h"
#include "parallel/unit_buffers.h"

namespace braid {

/// Adds the updates of units of matrices (ParameterUnit::is_muon). Of each unit, every rank makes
/// its elements of the mean of gradients (muon_mean), and shards are gathered. Each matrix is
/// orthogonalised by one rank of those that share the unit, so that these share the work; all other
/// ranks have zeros in its place, and the sum over ranks, which is exact, brings the results to
/// where the weights are updated (muon_update). So it works with any kind of shards. If each matrix
/// of a unit lies in the elements that one rank updates, as experts do with an even number of them
/// for each rank, ranks orthogonalise their own, and nothing is sent.
///
/// With X the matrix over its Frobenius norm, or its transpose, so that X X^T is small:
///   A = X X^T;  X = 3.4445 X + (-4.7750 A + 2.0315 A A) X      repeated `num_steps` times
/// Products are tasks of the op linear, in MuonOptions::dtype. If tensor ranks hold runs of X's
/// columns, each multiplies its own, and A is summed over them. Source: Jordan et al., Muon: an
/// optimizer for hidden layers, 2024.
class MuonTasks {
 public:
  /// What an update reads and writes besides gradients.
  struct State {
    UnitBuffer weights;  ///< fp32
    UnitBuffer exp_avg;
    BufferId grad_scale;
    BufferId scalars;
  };

  MuonTasks(TaskWriter& writer, const ParameterLayout& layout, UnitBuffers& units,
            const OptimizerOptions& options);

  void update(size_t unit, const State& state);

 private:
  /// A matrix as it is orthogonalised: x [rows, columns], of which ranks may share the columns.
  struct Work {
    int64_t rows = 0;
    int64_t columns = 0;
    bool transposed = false;

    double flops() const;
  };

  static Work work_of(const LayerMatrix& matrix);
  /// The ranks among which the matrices of a unit are divided.
  std::string_view owners(size_t unit) const;
  int64_t own_index(size_t unit);
  void find_whole_matrices();
  void assign_owners();
  bool is_own(size_t matrix);
  /// This rank's elements of what is orthogonalised.
  UnitBuffer add_means(size_t unit, const State& state);
  std::string name_of(const LayerMatrix& matrix) const;
  Label label_of(const LayerMatrix& matrix);
  /// For `num_elems` elements while the matrix is updated.
  BufferRange add_scratch(const LayerMatrix& matrix, std::string_view what, int64_t num_elems,
                          DType dtype);
  /// Copies a matrix of `means`. Returns the copy, x.
  BufferRange take(const LayerMatrix& matrix, const UnitBuffer& means);
  /// Orthogonalises x, a copy of the matrix, into the matrix's place in `directions`.
  void orthogonalize(const LayerMatrix& matrix, const BufferRange& x, const UnitBuffer& directions);
  /// Orthogonalises this rank's matrices in place, and zeroes all else. A rank without matrices of
  /// a unit, too, can so send it only after it was gathered: were that not so, its step could be
  /// put in an order in which other ranks cannot make these calls.
  void orthogonalize_own(size_t unit, const UnitBuffer& matrices);
  Label comm_label(size_t unit, std::string_view what);
  UnitBuffer gather(size_t unit, UnitBuffer means);
  UnitBuffer sum_over_owners(size_t unit, const UnitBuffer& directions);
  void add_update(size_t unit, const UpdateRun& run, const State& state,
                  const UnitBuffer& directions);
  void add_op(const OpSpec& spec, std::span<const BufferRange> ranges, const Label& label);

  TaskWriter& writer_;
  const ParameterLayout& layout_;
  UnitBuffers& units_;
  OptimizerOptions options_;
  /// By unit: ranks have shards of it, and each of its matrices lies in the elements of one rank.
  std::vector<bool> parts_have_whole_matrices_;
  std::vector<int64_t> owner_of_;  // by matrix of other units: index in its group of owners
};

}  // namespace braid
