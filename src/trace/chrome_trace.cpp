#include "trace/chrome_trace.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "trace/exposed.h"

namespace braid {
namespace {

/// Quoted and escaped.
std::string json_string(std::string_view text) {
  using Json = nlohmann::json;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// 12345 ns -> "12.345".
std::string microseconds(int64_t time_ns) {
  return fmt::format("{}.{:03}", time_ns / 1000, time_ns % 1000);
}

/// Rows in the order in which they first appear; a stream keeps its row over all steps.
class Rows {
 public:
  size_t thread_id(int rank, const std::string& stream) {
    auto& streams = by_rank_[rank];
    return streams.emplace(stream, streams.size() + 1).first->second;
  }
  const std::map<int, std::map<std::string, size_t>>& by_rank() const { return by_rank_; }

 private:
  std::map<int, std::map<std::string, size_t>> by_rank_;
};

/// Builds the list of events, one per line. A step may have millions of tasks, so events are
/// written as text and not through a document in memory.
class EventWriter {
 public:
  void add_step(const Timeline& timeline, int64_t offset_ns) {
    for (const RankTimeline& rank : timeline.ranks) {
      add_rank(rank, offset_ns);
    }
    add_arrows(offset_ns);
  }

  void add_counter(const TraceCounter& counter, int64_t offset_ns) {
    for (size_t i = 0; i < counter.time_ns.size(); ++i) {
      separate();
      fmt::format_to(std::back_inserter(events_),
                     R"({{"ph":"C","name":{},"pid":{},"ts":{},"args":{{"value":{}}}}})",
                     json_string(counter.name), counter.rank + 1,
                     microseconds(offset_ns + counter.time_ns[i]), counter.values[i]);
    }
  }

  std::string finish() {
    std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    std::string separator = "\n";
    for (const auto& [rank, streams] : rows_.by_rank()) {
      const int process = rank + 1;
      text += separator +
              metadata("process_name", process, 0, fmt::format("\"name\":\"rank {}\"", rank));
      separator = ",\n";
      text += separator +
              metadata("process_sort_index", process, 0, fmt::format("\"sort_index\":{}", rank));
      for (const auto& [stream, thread] : streams) {
        text += separator + metadata("thread_name", process, thread,
                                     fmt::format("\"name\":{}", json_string(stream)));
        text += separator + metadata("thread_sort_index", process, thread,
                                     fmt::format("\"sort_index\":{}", thread));
      }
    }
    if (events_.empty()) {
      separator = "";
    }
    return text + separator + events_ + "\n]}\n";
  }

 private:
  static std::string metadata(std::string_view kind, int process, size_t thread,
                              const std::string& argument) {
    const std::string thread_id = thread == 0 ? "" : fmt::format("\"tid\":{},", thread);
    return fmt::format("{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},{}\"args\":{{{}}}}}", kind,
                       process, thread_id, argument);
  }

  void add_rank(const RankTimeline& rank, int64_t offset_ns) {
    std::vector<std::string> names;
    for (const std::string& name : rank.names) {
      names.push_back(json_string(name));
    }
    std::vector<size_t> threads;
    for (const Stream& stream : rank.streams) {
      threads.push_back(rows_.thread_id(rank.rank, stream.name));
    }
    const std::vector<std::string> kernels = kernels_of_tasks(rank);
    std::vector<int64_t> busy_until_ns(rank.streams.size(), 0);
    for (const TimelineTask& task : rank.tasks) {
      check(task.stream < threads.size() && task.name < names.size(),
            "timeline of rank {}: stream {} or name {} does not exist", rank.rank, task.stream,
            task.name);
      int64_t& busy_until = busy_until_ns[task.stream];
      check(busy_until <= task.start_ns && task.start_ns <= task.end_ns,
            "timeline of rank {}: stream {} has a task from {} to {} ns after one until {} ns",
            rank.rank, rank.streams[task.stream].name, task.start_ns, task.end_ns, busy_until);
      busy_until = task.end_ns;
      const auto index = static_cast<size_t>(&task - rank.tasks.data());
      const std::string own_kernels = index < kernels.size() ? kernels[index] : "";
      add_task(task, names[task.name], own_kernels, {rank.rank + 1, threads[task.stream]},
               rank.step, offset_ns);
      note_message(rank, task, {rank.rank + 1, threads[task.stream]});
    }
    add_work_of_no_task(rank, offset_ns);
  }

  /// The names of each task's kernels, as members of an array; empty if kernels were not timed.
  static std::vector<std::string> kernels_of_tasks(const RankTimeline& rank) {
    std::vector<std::string> names;
    for (const std::string& name : rank.kernel_names) {
      names.push_back(json_string(name));
    }
    std::vector<std::string> lists(rank.kernels.empty() ? 0 : rank.tasks.size());
    for (const TimelineKernel& kernel : rank.kernels) {
      check(kernel.name < names.size() &&
                (kernel.task < lists.size() || kernel.task == TimelineKernel::kNoTask),
            "timeline of rank {}: kernel {} of task {} does not exist", rank.rank, kernel.name,
            kernel.task);
      if (kernel.task != TimelineKernel::kNoTask) {
        lists[kernel.task] += (lists[kernel.task].empty() ? "" : ",") + names[kernel.name];
      }
    }
    return lists;
  }

  void add_work_of_no_task(const RankTimeline& rank, int64_t offset_ns) {
    int64_t busy_until_ns = 0;  // such work may overlap, which one row cannot show
    for (const TimelineKernel& kernel : rank.kernels) {
      if (kernel.task == TimelineKernel::kNoTask) {
        const int64_t start_ns = std::max(kernel.start_ns, busy_until_ns);
        busy_until_ns = std::max(kernel.end_ns, start_ns);
        begin_event(json_string(rank.kernel_names[kernel.name]), "no task",
                    {rank.rank + 1, rows_.thread_id(rank.rank, "no task")}, offset_ns + start_ns,
                    busy_until_ns - start_ns);
        fmt::format_to(std::back_inserter(events_), "\"step\":{}}}}}", rank.step);
      }
    }
  }

  struct Row {
    int process = 0;
    size_t thread = 0;
  };

  /// One end of a message.
  struct MessageEnd {
    Row row;
    int64_t time_ns = 0;
  };
  struct Message {
    std::optional<MessageEnd> sent;
    std::optional<MessageEnd> received;
  };

  void note_message(const RankTimeline& rank, const TimelineTask& task, const Row& row) {
    if (task.sequence >= rank.sequences.size() || !rank.sequences[task.sequence].messages) {
      return;
    }
    const TimelineSequence& sequence = rank.sequences[task.sequence];
    Message& message = messages_[{sequence.name, task.call}];
    if (rank.rank == sequence.ranks.front()) {
      message.sent = {row, task.start_ns};
    } else {
      message.received = {row, task.end_ns};
    }
  }

  /// Of the messages of a step.
  void add_arrows(int64_t offset_ns) {
    for (const auto& [key, message] : messages_) {
      if (message.sent && message.received) {
        add_arrow_end("s", *message.sent, offset_ns);
        add_arrow_end("f", *message.received, offset_ns);
        ++num_arrows_;
      }
    }
    messages_.clear();
  }

  /// An end binds to the task around it.
  void add_arrow_end(std::string_view kind, const MessageEnd& end, int64_t offset_ns) {
    separate();
    fmt::format_to(
        std::back_inserter(events_),
        R"({{"ph":"{}","bp":"e","name":"message","cat":"message","id":{},"pid":{},"tid":{},"ts":{}}})",
        kind, num_arrows_, end.row.process, end.row.thread, microseconds(offset_ns + end.time_ns));
  }

  void separate() { events_ += events_.empty() ? "" : ",\n"; }

  /// Up to the "{" of the arguments.
  void begin_event(const std::string& name, std::string_view category, const Row& row,
                   int64_t start_ns, int64_t duration_ns) {
    separate();
    fmt::format_to(std::back_inserter(events_),
                   "{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},"
                   "\"dur\":{},\"args\":{{",
                   name, category, row.process, row.thread, microseconds(start_ns),
                   microseconds(duration_ns));
  }

  void add_task(const TimelineTask& task, const std::string& name, const std::string& kernels,
                const Row& row, int64_t step, int64_t offset_ns) {
    begin_event(name, task.communication ? "communication" : phase_name(task.phase), row,
                offset_ns + task.start_ns, task.end_ns - task.start_ns);
    fmt::format_to(std::back_inserter(events_), "\"step\":{}", step);
    add_argument("microbatch", task.microbatch);
    add_argument("virtual_stage", task.virtual_stage);
    add_argument("layer", task.layer);
    fmt::format_to(std::back_inserter(events_), ",\"phase\":\"{}\"", phase_name(task.phase));
    if (task.communication) {
      fmt::format_to(std::back_inserter(events_), ",\"bytes\":{},\"group\":\"{}\"", task.bytes,
                     group_kind_name(task.group));
    }
    if (task.wait_ns > 0) {
      fmt::format_to(std::back_inserter(events_), ",\"waited_us\":{}", microseconds(task.wait_ns));
    }
    if (!kernels.empty()) {
      events_ += ",\"kernels\":[" + kernels + "]";
    }
    events_ += "}}";
  }

  void add_argument(std::string_view name, int32_t value) {
    if (value >= 0) {
      fmt::format_to(std::back_inserter(events_), ",\"{}\":{}", name, value);
    }
  }

  Rows rows_;
  std::map<std::pair<std::string, uint32_t>, Message> messages_;  // of one step
  int64_t num_arrows_ = 0;
  std::string events_;
};

}  // namespace

std::string chrome_trace_json(std::span<const Timeline> steps,
                              std::span<const TraceCounter> counters) {
  EventWriter writer;
  int64_t offset_ns = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    writer.add_step(steps[i], offset_ns);
    for (const TraceCounter& counter : counters) {
      if (counter.step == i) {
        writer.add_counter(counter, offset_ns);
      }
    }
    offset_ns += step_time_ns(steps[i]);
  }
  return writer.finish();
}

void write_chrome_trace(const std::string& path, std::span<const Timeline> steps,
                        std::span<const TraceCounter> counters) {
  write_file_atomically(path, chrome_trace_json(steps, counters));
}

}  // namespace braid
