#pragma once

#include <string>

#include "trace/timeline.h"

namespace braid {

/// A timeline as compact JSON for a script inside an HTML page ("<" is escaped, so that it is safe
/// inside <script>): a column per field, parallel over tasks, of integers in the shortest form of
/// packed_column.h.
///
///   {"source": "cpu", "phases": ["forward", ...], "groups": ["data", ...], "step_ns": 123,
///    "ranks": [{"rank": 0, "step": 7, "streams": [{"name": "compute", "kind": "compute"}],
///               "names": ["linear attention.qkv"],
///               "stream": [0], "name": [0], "start_ns": [0], "duration_ns": [5], "phase": [0],
///               "microbatch": [0], "virtual_stage": [-1], "layer": [3], "bytes": [0],
///               "group": [-1], "wait_ns": [0], "remark": "", "kernel_names": ["k"],
///               "kernels": {"task": [0], "name": [0], "start_ns": [0], "duration_ns": [5]}}]}
///
/// `phase` and `group` index `phases` and `groups`. `group` is -1 for tasks that do not
/// communicate, `kernels.task` is -1 for work of no task; elsewhere -1 means: does not apply.
std::string timeline_json(const Timeline& timeline);

}  // namespace braid
