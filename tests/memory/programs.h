#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Gives a program the events that its dependencies need; few enough, not the fewest.
inline void add_events(Program& program) {
  struct Use {
    uint32_t task;
    BufferRange range;
    bool is_write;
  };
  std::vector<std::vector<Use>> uses(program.buffers.size());
  std::vector<std::vector<int64_t>> waited(program.streams.size(),
                                           std::vector<int64_t>(program.streams.size(), -1));
  for (uint32_t index = 0; index < program.tasks.size(); ++index) {
    Task& task = program.tasks[index];
    const size_t stream = task.stream.index();
    std::vector<int64_t> needed(program.streams.size(), -1);
    const auto operands = program.operands_of(task);
    for (size_t i = 0; i < operands.size(); ++i) {
      const BufferRange& range = operands[i];
      const bool is_write = writes(program.spec(task).operands[i].access);
      std::vector<Use>& earlier = uses[range.buffer.index()];
      for (const Use& use : earlier) {
        if (use.range.overlaps(range) && (use.is_write || is_write) && use.task != index) {
          int64_t& latest = needed[program.tasks[use.task].stream.index()];
          latest = std::max<int64_t>(latest, use.task);
        }
      }
      if (is_write) {
        std::erase_if(earlier, [&](const Use& use) {
          return range.begin <= use.range.begin && use.range.end <= range.end;
        });
      }
      earlier.push_back({index, range, is_write});
    }
    task.waits_begin = static_cast<uint32_t>(program.waits.size());
    for (size_t of = 0; of < needed.size(); ++of) {
      if (of != stream && needed[of] > waited[stream][of]) {
        waited[stream][of] = needed[of];
        EventId& record = program.tasks[static_cast<size_t>(needed[of])].record;
        if (!record.valid()) {
          record = EventId(program.num_events++);
        }
        program.waits.push_back(record);
      }
    }
    task.num_waits = static_cast<uint32_t>(program.waits.size()) - task.waits_begin;
  }
}

/// Writes programs whose tasks do nothing but touch buffers of bytes.
class ProgramWriter {
 public:
  ProgramWriter() : builder_("step", 0, 1) {}

  StreamId stream(StreamKind kind) {
    return builder_.add_stream(
        {fmt::format("{}{}", stream_kind_name(kind), num_names_++), kind, 0});
  }
  BufferId buffer(int64_t size_bytes, BufferRole role = BufferRole::kActivation,
                  Lifetime lifetime = Lifetime::kStep, std::string name = {}) {
    if (name.empty()) {
      name = fmt::format("b{}", num_names_++);
    }
    return builder_.add_buffer(
        {std::move(name), DType::kU8, {size_bytes}, role, lifetime, Placement::kDevice});
  }
  void task(StreamId stream, const std::vector<BufferRange>& read,
            const std::vector<BufferRange>& written) {
    OpSpec spec{"touch", {}, {}};
    std::vector<BufferRange> operands;
    for (const BufferRange& range : read) {
      spec.operands.push_back({DType::kU8, Access::kRead, {range.end - range.begin}});
      operands.push_back(range);
    }
    for (const BufferRange& range : written) {
      spec.operands.push_back({DType::kU8, Access::kReadWrite, {range.end - range.begin}});
      operands.push_back(range);
    }
    builder_.add_task(spec, operands, stream, Label{});
  }
  void task(StreamId stream, std::initializer_list<BufferId> read,
            std::initializer_list<BufferId> written) {
    std::vector<BufferRange> read_ranges;
    std::vector<BufferRange> written_ranges;
    for (const BufferId buffer : read) {
      read_ranges.push_back(builder_.whole(buffer));
    }
    for (const BufferId buffer : written) {
      written_ranges.push_back(builder_.whole(buffer));
    }
    task(stream, read_ranges, written_ranges);
  }
  size_t num_tasks() const { return builder_.program().tasks.size(); }
  /// The program with its events.
  Program take() {
    Program program = builder_.take();
    add_events(program);
    return program;
  }

 private:
  ProgramBuilder builder_;
  int num_names_ = 0;
};

/// A small program without any sense: up to 4 streams, ranges and sizes of all kinds.
inline Program random_small_program(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  };
  ProgramWriter writer;
  std::vector<StreamId> streams;
  for (int64_t i = 0, count = 1 + below(4); i < count; ++i) {
    streams.push_back(writer.stream(StreamKind::kCompute));
  }
  std::vector<BufferId> buffers;
  std::vector<int64_t> sizes;
  for (int64_t i = 0, count = 1 + below(24); i < count; ++i) {
    sizes.push_back(below(10) == 0 ? 0 : 1 + below(5000));
    buffers.push_back(writer.buffer(sizes.back(), BufferRole::kActivation,
                                    below(8) == 0 ? Lifetime::kPersistent : Lifetime::kStep));
  }
  for (int64_t i = 0, count = 1 + below(60); i < count; ++i) {
    std::vector<BufferRange> ranges[2];
    for (int64_t operand = 0; operand < 3; ++operand) {
      // Mostly buffers of the same age, so that lifetimes are short.
      const auto center = i * static_cast<int64_t>(buffers.size()) / count;
      const auto pick = static_cast<size_t>(
          std::clamp<int64_t>(center + below(5) - 2, 0, static_cast<int64_t>(buffers.size()) - 1));
      int64_t begin = 0;
      int64_t end = sizes[pick];
      if (below(3) == 0) {
        begin = below(end + 1);
        end = begin + below(end - begin + 1);
      }
      ranges[below(2)].push_back({buffers[pick], begin, end});
    }
    writer.task(streams[static_cast<size_t>(below(static_cast<int64_t>(streams.size())))],
                ranges[0], ranges[1]);
  }
  return writer.take();
}

/// The same program with half of its step buffers on the host.
inline Program with_host_buffers(Program program, uint64_t seed) {
  std::mt19937_64 random(seed + 1);
  for (Buffer& buffer : program.buffers) {
    if (buffer.lifetime == Lifetime::kStep && random() % 2 == 0) {
      buffer.placement = Placement::kHost;
    }
  }
  return program;
}

struct TransformerOptions {
  int64_t layers = 12;
  int64_t microbatches = 4;
  int64_t tokens = 1000;  ///< of a microbatch
  int64_t width = 384;
  int64_t ffn = 1003;
  int64_t vocabulary = 8000;
  int64_t in_flight = 1;  ///< microbatches whose forward runs before the backward of the first
  bool gather_parameters = false;  ///< before each use, on a communication stream, one ahead
  bool reduce_gradients = false;   ///< bucketed copies, on a communication stream
};

/// One training step shaped like that of a transformer: saved activations, gradients that live for
/// a few tasks, scratch, gathered weights, gradient buckets in flight.
class TransformerStep {
 public:
  explicit TransformerStep(const TransformerOptions& options) : options_(options) {
    compute_ = writer_.stream(StreamKind::kCompute);
    gather_ = writer_.stream(StreamKind::kComm);
    reduce_ = writer_.stream(StreamKind::kComm);
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      weights_.push_back(writer_.buffer(weight_bytes(), BufferRole::kParam, Lifetime::kPersistent));
      main_grads_.push_back(
          writer_.buffer(2 * weight_bytes(), BufferRole::kMainGrad, Lifetime::kPersistent));
    }
    saved_.resize(static_cast<size_t>(options.microbatches));
  }

  Program write() {
    const int64_t total = options_.microbatches + options_.in_flight - 1;
    for (int64_t job = 0; job < total; ++job) {
      if (job < options_.microbatches) {
        forward(job);
      }
      if (job >= options_.in_flight - 1) {
        backward(job - options_.in_flight + 1);
      }
    }
    return writer_.take();
  }

 private:
  struct Saved {
    BufferId input, norm1, norm1_scale, qkv, attention, lse, mid, norm2, norm2_scale, gate_up,
        product;
  };

  int64_t hidden_bytes() const { return 2 * options_.tokens * options_.width; }
  int64_t weight_bytes() const {
    return 2 * (4 * options_.width * options_.width + 3 * options_.width * options_.ffn);
  }
  int64_t row_bytes() const { return 4 * options_.tokens; }
  BufferId activation(int64_t bytes) { return writer_.buffer(bytes); }
  BufferId scratch(int64_t bytes) { return writer_.buffer(bytes, BufferRole::kScratch); }

  /// The full weight of a layer; the next one is asked for at the same time.
  BufferId weight(int64_t layer, int64_t next_layer) {
    if (!options_.gather_parameters) {
      return weights_[static_cast<size_t>(layer)];
    }
    if (gathered_layer_ != layer) {
      gathered_weight_ = gather(layer);
    }
    const BufferId current = gathered_weight_;
    if (next_layer >= 0 && next_layer < options_.layers) {
      gathered_layer_ = next_layer;
      gathered_weight_ = gather(next_layer);
    } else {
      gathered_layer_ = -1;
    }
    return current;
  }
  /// Waits for the compute of the layer before the last, as prefetching with two slots does.
  BufferId gather(int64_t layer) {
    const BufferId full = writer_.buffer(weight_bytes(), BufferRole::kGathered);
    if (token_.valid()) {
      writer_.task(gather_, {token_}, {});
    }
    writer_.task(gather_, {weights_[static_cast<size_t>(layer)]}, {full});
    return full;
  }

  void forward(int64_t microbatch) {
    BufferId hidden = activation(hidden_bytes());
    writer_.task(compute_, {}, {hidden});
    for (int64_t layer = 0; layer < options_.layers; ++layer) {
      const BufferId w = weight(layer, layer + 1);
      Saved s;
      s.input = hidden;
      s.norm1 = activation(hidden_bytes());
      s.norm1_scale = activation(row_bytes());
      writer_.task(compute_, {hidden, w}, {s.norm1, s.norm1_scale});
      const BufferId qkv = activation(hidden_bytes() * 3 / 2);
      writer_.task(compute_, {s.norm1, w}, {qkv});
      s.qkv = activation(hidden_bytes() * 3 / 2);
      writer_.task(compute_, {qkv}, {s.qkv});
      s.attention = activation(hidden_bytes());
      s.lse = activation(row_bytes() * 8);
      const BufferId workspace = scratch(hidden_bytes() / 3 + 77);
      writer_.task(compute_, {s.qkv}, {s.attention, s.lse, workspace});
      const BufferId projected = activation(hidden_bytes());
      writer_.task(compute_, {s.attention, w}, {projected});
      s.mid = activation(hidden_bytes());
      s.norm2 = activation(hidden_bytes());
      s.norm2_scale = activation(row_bytes());
      writer_.task(compute_, {projected, hidden}, {s.mid, s.norm2, s.norm2_scale});
      s.gate_up = activation(4 * options_.tokens * options_.ffn);
      writer_.task(compute_, {s.norm2, w}, {s.gate_up});
      s.product = activation(2 * options_.tokens * options_.ffn);
      writer_.task(compute_, {s.gate_up}, {s.product});
      const BufferId down = activation(hidden_bytes());
      writer_.task(compute_, {s.product, w}, {down});
      hidden = activation(hidden_bytes());
      writer_.task(compute_, {down, s.mid}, {hidden});
      token_ = hidden;
      saved_[static_cast<size_t>(microbatch)].push_back(s);
    }
    last_hidden_.push_back(hidden);
  }

  void backward(int64_t microbatch) {
    const BufferId last = last_hidden_[static_cast<size_t>(microbatch)];
    const BufferId logits = activation(4 * options_.tokens * options_.vocabulary / 8);
    writer_.task(compute_, {last}, {logits});
    writer_.task(compute_, {}, {logits});
    BufferId grad = activation(hidden_bytes());
    writer_.task(compute_, {logits}, {grad});
    for (int64_t layer = options_.layers; layer-- > 0;) {
      const BufferId w = weight(layer, layer - 1);
      const Saved s = saved_[static_cast<size_t>(microbatch)][static_cast<size_t>(layer)];
      const BufferId main_grad = main_grads_[static_cast<size_t>(layer)];
      const BufferId dproduct = activation(2 * options_.tokens * options_.ffn);
      writer_.task(compute_, {grad, w}, {dproduct});
      writer_.task(compute_, {grad, s.product}, {main_grad});
      const BufferId dgate_up = activation(4 * options_.tokens * options_.ffn);
      writer_.task(compute_, {dproduct, s.gate_up}, {dgate_up});
      const BufferId dnorm2 = activation(hidden_bytes());
      writer_.task(compute_, {dgate_up, w}, {dnorm2});
      writer_.task(compute_, {dgate_up, s.norm2}, {main_grad});
      const BufferId dmid = activation(hidden_bytes());
      const BufferId workspace = scratch(row_bytes() * 13);
      writer_.task(compute_, {dnorm2, s.mid, s.norm2_scale, grad}, {dmid, workspace});
      const BufferId dattention = activation(hidden_bytes());
      writer_.task(compute_, {dmid, w}, {dattention});
      writer_.task(compute_, {dmid, s.attention}, {main_grad});
      const BufferId dqkv = activation(hidden_bytes() * 3 / 2);
      const BufferId accumulator = scratch(hidden_bytes() * 2);
      writer_.task(compute_, {dattention, s.qkv, s.attention, s.lse}, {dqkv, accumulator});
      const BufferId dunrotated = activation(hidden_bytes() * 3 / 2);
      writer_.task(compute_, {dqkv}, {dunrotated});
      const BufferId dnorm1 = activation(hidden_bytes());
      writer_.task(compute_, {dunrotated, w}, {dnorm1});
      writer_.task(compute_, {dunrotated, s.norm1}, {main_grad});
      grad = activation(hidden_bytes());
      writer_.task(compute_, {dnorm1, s.input, s.norm1_scale, dmid}, {grad});
      token_ = grad;
      if (options_.reduce_gradients && microbatch + 1 == options_.microbatches) {
        const BufferId bucket = writer_.buffer(weight_bytes(), BufferRole::kGrad);
        writer_.task(compute_, {main_grad}, {bucket});
        writer_.task(reduce_, {}, {bucket});
        writer_.task(reduce_, {bucket}, {main_grad});
      }
    }
  }

  TransformerOptions options_;
  ProgramWriter writer_;
  StreamId compute_, gather_, reduce_;
  std::vector<BufferId> weights_;
  std::vector<BufferId> main_grads_;
  std::vector<std::vector<Saved>> saved_;
  std::vector<BufferId> last_hidden_;
  BufferId token_;  // written at the end of the last layer computed
  int64_t gathered_layer_ = -1;
  BufferId gathered_weight_;
};

/// By BufferId.
inline std::vector<int64_t> sizes_of(const Program& program) {
  std::vector<int64_t> sizes;
  for (const Buffer& buffer : program.buffers) {
    sizes.push_back(buffer.size_bytes());
  }
  return sizes;
}

}  // namespace braid
