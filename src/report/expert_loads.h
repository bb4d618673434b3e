#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/records.h"
#include "report/report_html.h"

namespace braid {

/// The record of a layer whose experts have these rows. Its step, layer and losses are left open.
ExpertRecord load_record(const std::vector<int64_t>& rows);

/// The layers of a run with the least equal loads, at most `max_layers` of them, the worst first.
/// "last" is the last step with records. Empty if there are no records.
///
///   layer              layers.3
///   max/mean, of run   1.84, 2.6      the largest expert; the most in any step with a record
///   at step            10             of the latter
///   min/mean, std      0.41, 0.29     the smallest expert; standard deviation / mean
///   entropy            0.97           of log of the number of experts
///   dead, of run       0, 0           experts without rows in this step, and in all recorded
///   balance, in sequences, z   1.05, 1.21, 21.3   losses without their coefficients
///   dropped, of run    0.1%, 0.1%     share of rows without room, in this step and in all
///   recorded;
///                                     these columns are there if ranks have different experts, or
///                                     experts take a limited number of rows
///   room used          93%            of the rank, or expert, to which most rows came
///   capacity, of run   1.4, 1.6       the least moe.capacity, or moe.expert_capacity, with room
///                                     for all rows
ReportTable expert_table(const std::vector<ExpertRecord>& records, size_t max_layers = 8);

/// What the report shows of experts; null if there are no records.
///
///   {"steps": [1, 10], "mean": [0.5, 0.4], "worst": [1.2, 0.8],   max violation over the layers
///    "table": {"columns": ["layer"], "rows": [["layers.3"]]},      expert_table
///    "loads": {"step": 100, "layers": ["layers.0"], "rows": [[1.02, 0.98]]}}   rows / mean by
///    layer
///                                                  and expert in the last step with counts, or
///                                                  null
///    "room": "Largest use ..."}                      room_note, if it is not empty
nlohmann::ordered_json expert_json(const std::vector<ExpertRecord>& records,
                                   const std::vector<StepRecord>& steps = {});

/// A sentence or two about room for rows: which moe.capacity, or moe.expert_capacity, would have
/// sufficed in the recorded steps, how many rows were dropped, and which steps ran again. Empty if
/// no layer has a record of its room.
std::string room_note(const std::vector<ExpertRecord>& records,
                      const std::vector<StepRecord>& steps);

}  // namespace braid
