#pragma once

#include <cstdint>
#include <map>

#include "ir/program.h"

namespace braid {

/// The rows of experts on which tasks of a rank work, where ranks have different experts. Operands
/// have the shape of the rank's room (ops/expert_exchange.h), but kernels and exchanges work only
/// on the rows that came. How many those are is data. A price assumes a load: 1 if all ranks have
/// equally many, 1.5 for a rank that has 1.5 times as many.
class RoutedRows {
 public:
  explicit RoutedRows(const Program& program, double load = 1.0);

  /// The spec by which a spec of the program is priced. Tasks that read the offsets of rows in a
  /// room have the rows that come there, at most those that fit. dispatch_rows and combine_rows
  /// move as many rows as come to the rank. Others are as they are.
  OpSpec priced(const OpSpec& spec) const;

 private:
  double load_;
  std::map<int64_t, int64_t> equal_rows_;  // by room: the rows of a load of 1
};

}  // namespace braid
