#pragma once

#include <string>
#include <vector>

#include "report/records.h"
#include "report/report_html.h"

namespace braid {

/// "layers.3" and "attention.qkv" of "layers.3.attention.qkv".
struct SiteParts {
  std::string layer;
  std::string place;
};
SiteParts split_site(const std::string& site);

/// What the FP8 copies of a run lost: a row for each place in a layer and factor, so it is as long
/// for 80 layers as for two. "last" is the last step with records; "worst" is the layer that loses
/// most. Empty if there are no records.
///
///   place, factor                     attention.qkv, x
///   amax, amax of run                 3.21, 8.5        the largest of all layers
///   flushed, worst, in                0.42%, 1.1% in layers.7
///   worst of run, in, step            2.0% in layers.3 at step 40
///   saturated of run                  0%               the largest share of a layer in a step
ReportTable fp8_table(const std::vector<Fp8Record>& records);

/// The table as text, a line per row.
std::string describe_table(const ReportTable& table);

}  // namespace braid
