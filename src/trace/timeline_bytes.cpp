#include "trace/timeline_bytes.h"

#include <cstring>
#include <type_traits>
#include <vector>

#include "base/byte_fields.h"

namespace braid {
namespace {

// Written in the memory layout: the same program reads them.
static_assert(std::is_trivially_copyable_v<TimelineTask>);
static_assert(std::is_trivially_copyable_v<TimelineKernel>);

template <class T>
void write_array(ByteWriter& out, const std::vector<T>& values) {
  out.text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

template <class T>
std::vector<T> read_array(ByteReader& in) {
  const std::string bytes = in.text();
  if (bytes.size() % sizeof(T) != 0) {
    throw_device_error("a timeline of another process is damaged");
  }
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) {
    std::memcpy(static_cast<void*>(values.data()), bytes.data(), bytes.size());
  }
  return values;
}

template <class T, class Write>
void write_list(ByteWriter& out, const std::vector<T>& values, const Write& write) {
  out.number(static_cast<uint64_t>(values.size()));
  for (const T& value : values) {
    write(value);
  }
}

template <class T, class Read>
std::vector<T> read_list(ByteReader& in, const Read& read) {
  std::vector<T> values(in.count(1));
  for (T& value : values) {
    read(value);
  }
  return values;
}

void write_texts(ByteWriter& out, const std::vector<std::string>& texts) {
  write_list(out, texts, [&](const std::string& text) { out.text(text); });
}

std::vector<std::string> read_texts(ByteReader& in) {
  return read_list<std::string>(in, [&](std::string& text) { text = in.text(); });
}

}  // namespace

std::string timeline_bytes(const RankTimeline& timeline) {
  ByteWriter out;
  out.number(timeline.rank).number(timeline.step);
  write_list(out, timeline.streams, [&](const Stream& stream) {
    out.text(stream.name).number(stream.kind).number(stream.priority);
  });
  write_texts(out, timeline.names);
  write_array(out, timeline.tasks);
  write_list(out, timeline.ops,
             [&](const TimelineOp& op) { out.text(op.name).number(op.flops).number(op.bytes); });
  write_texts(out, timeline.kernel_names);
  write_array(out, timeline.kernels);
  out.text(timeline.device.name)
      .number(timeline.device.flops_per_s)
      .number(timeline.device.bytes_per_s);
  out.text(timeline.method).text(timeline.remark);
  write_list(out, timeline.sequences, [&](const TimelineSequence& sequence) {
    out.text(sequence.name).number(sequence.messages);
    write_array(out, sequence.ranks);
  });
  out.number(timeline.clock_origin_ns);
  return out.take();
}

RankTimeline timeline_of_bytes(std::string_view bytes) {
  ByteReader in(bytes);
  RankTimeline timeline;
  timeline.rank = in.number<int>();
  timeline.step = in.number<int64_t>();
  timeline.streams = read_list<Stream>(in, [&](Stream& stream) {
    stream.name = in.text();
    stream.kind = in.number<StreamKind>();
    stream.priority = in.number<decltype(stream.priority)>();
  });
  timeline.names = read_texts(in);
  timeline.tasks = read_array<TimelineTask>(in);
  timeline.ops = read_list<TimelineOp>(in, [&](TimelineOp& op) {
    op.name = in.text();
    op.flops = in.number<double>();
    op.bytes = in.number<double>();
  });
  timeline.kernel_names = read_texts(in);
  timeline.kernels = read_array<TimelineKernel>(in);
  timeline.device.name = in.text();
  timeline.device.flops_per_s = in.number<double>();
  timeline.device.bytes_per_s = in.number<double>();
  timeline.method = in.text();
  timeline.remark = in.text();
  timeline.sequences = read_list<TimelineSequence>(in, [&](TimelineSequence& sequence) {
    sequence.name = in.text();
    sequence.messages = in.number<bool>();
    sequence.ranks = read_array<int>(in);
  });
  timeline.clock_origin_ns = in.number<int64_t>();
  return timeline;
}

}  // namespace braid
