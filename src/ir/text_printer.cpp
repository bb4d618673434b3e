#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "ir/text.h"

namespace braid {
namespace {

bool is_plain_word(std::string_view name) {
  const bool starts_well = !name.empty() && (name[0] == '_' || (name[0] >= 'a' && name[0] <= 'z') ||
                                             (name[0] >= 'A' && name[0] <= 'Z'));
  return starts_well && name.back() != '-' && std::ranges::all_of(name, is_word_character);
}

std::string print_word(std::string_view name) {
  return is_plain_word(name) ? std::string(name) : quote(name);
}

/// Prints a name at the start of a line or an operand, where a keyword could also appear.
std::string print_name(std::string_view name) {
  return is_reserved_word(name) ? quote(name) : print_word(name);
}

/// How tasks refer to objects of one kind: by name, or by index if the name is not unique.
class References {
 public:
  template <class Named>
  explicit References(const std::vector<Named>& things) {
    std::unordered_map<std::string_view, int> uses;
    for (const Named& thing : things) {
      ++uses[thing.name];
    }
    texts_.reserve(things.size());
    for (const Named& thing : things) {
      texts_.push_back(uses[thing.name] == 1 ? print_name(thing.name)
                                             : fmt::format("#{}", texts_.size()));
    }
  }

  void append(std::string& out, uint32_t id) const {
    if (id < texts_.size()) {
      out += texts_[id];
    } else {
      fmt::format_to(std::back_inserter(out), "#{}", id);
    }
  }

 private:
  std::vector<std::string> texts_;
};

class Printer {
 public:
  explicit Printer(const Program& program)
      : program_(program), buffers_(program.buffers), streams_(program.streams) {
    for (const std::string& site : program.sites) {
      sites_.push_back(print_word(site));
    }
  }

  std::string run() {
    print_header();
    for (const Task& task : program_.tasks) {
      print_task(task);
    }
    return std::move(out_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  /// " KEY=NUMBER", or nothing for 0.
  static std::string number_if(std::string_view key, int number) {
    return number == 0 ? "" : fmt::format(" {}={}", key, number);
  }

  void print_header() {
    add("program {} rank={} ranks={} events={}\n", print_word(program_.name), program_.rank,
        program_.num_ranks, program_.num_events);
    for (const Stream& stream : program_.streams) {
      add("stream {} kind={} priority={}{}\n", print_name(stream.name),
          stream_kind_name(stream.kind), stream.priority, number_if("left_sms", stream.left_sms));
    }
    for (const Group& group : program_.groups) {
      add("group {} kind={} ranks={}{}\n", print_word(group.name), group_kind_name(group.kind),
          fmt::join(group.ranks, ","), number_if("max_sms", group.max_sms));
    }
    for (const Buffer& buffer : program_.buffers) {
      add("buffer {} {} {} {} {} {}\n", print_name(buffer.name), dtype_name(buffer.dtype),
          to_string(buffer.shape), role_name(buffer.role), lifetime_name(buffer.lifetime),
          placement_name(buffer.placement));
    }
  }

  void check_references(const Task& task) const {
    check(task.spec.value < program_.specs.size(), "a task has the spec #{}, which does not exist",
          task.spec.value);
    const size_t num_operands = program_.spec(task).operands.size();
    check(task.operands_begin <= program_.operands.size() &&
              num_operands <= program_.operands.size() - task.operands_begin,
          "a task has operands [{}, {}) of {}", task.operands_begin,
          task.operands_begin + num_operands, program_.operands.size());
    check(task.waits_begin <= program_.waits.size() &&
              task.num_waits <= program_.waits.size() - task.waits_begin,
          "a task has waits [{}, {}) of {}", task.waits_begin,
          size_t{task.waits_begin} + task.num_waits, program_.waits.size());
  }

  void print_task(const Task& task) {
    check_references(task);
    const OpSpec& spec = program_.spec(task);
    out_ += print_name(spec.op);
    print_operands(spec, program_.operands_of(task));
    print_attributes(spec.attributes);
    out_ += ' ';
    streams_.append(out_, task.stream.value);
    print_label(task.label);
    if (task.record.valid()) {
      add(" record=e{}", task.record.value);
    }
    const char* separator = " wait=e";
    for (const EventId event : program_.waits_of(task)) {
      add("{}{}", separator, event.value);
      separator = ",e";
    }
    out_ += '\n';
  }

  void print_operands(const OpSpec& spec, std::span<const BufferRange> ranges) {
    out_ += '(';
    bool past_arrow = false;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Access access = spec.operands[i].access;
      if (!past_arrow && writes(access)) {
        past_arrow = true;
        out_ += i == 0 ? "-> " : " -> ";
      } else if (i > 0) {
        out_ += ", ";
      }
      if (access == Access::kReadWrite) {
        out_ += "rw ";
      } else if (past_arrow && access == Access::kRead) {
        out_ += "read ";
      }
      print_operand(spec.operands[i], ranges[i]);
    }
    out_ += ')';
  }

  void print_operand(const OperandSpec& spec, const BufferRange& range) {
    buffers_.append(out_, range.buffer.value);
    const bool known = range.buffer.value < program_.buffers.size();
    const Buffer* buffer = known ? &program_.buffers[range.buffer.index()] : nullptr;
    const bool is_whole = known && is_valid_shape(buffer->shape) && range.begin == 0 &&
                          range.end == buffer->num_elems();
    if (!is_whole) {
      add("[{}:{}]", range.begin, range.end);
    }
    if (!known || spec.dtype != buffer->dtype) {
      add(" {}", dtype_name(spec.dtype));
    }
    const bool is_part = !is_whole && known && range.begin >= 0 && range.end >= range.begin;
    if (!(is_whole && spec.shape == buffer->shape) &&
        !(is_part && spec.shape == Shape{range.end - range.begin})) {
      add(" {}", to_string(spec.shape));
    }
  }

  void print_attributes(const std::vector<Attribute>& attributes) {
    const char* separator = " {";
    for (const Attribute& attribute : attributes) {
      add("{}{}={}", separator, print_word(attribute.name), print_attribute_value(attribute.value));
      separator = ", ";
    }
    out_ += attributes.empty() ? "" : "}";
  }

  void print_label(const Label& label) {
    add(" {}", phase_name(label.phase));
    const auto add_index = [&](std::string_view key, int32_t index) {
      if (index != -1) {
        add(" {}={}", key, index);
      }
    };
    add_index("mb", label.microbatch);
    add_index("vs", label.virtual_stage);
    add_index("layer", label.layer);
    if (label.site.value < sites_.size()) {
      add(" site={}", sites_[label.site.index()]);
    } else if (label.site.valid()) {
      add(" site=#{}", label.site.value);
    }
  }

  const Program& program_;
  References buffers_;
  References streams_;
  std::vector<std::string> sites_;
  std::string out_;
};

std::string print_double(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  std::string text = fmt::format("{}", value);
  // Without ".0" a whole number would be parsed as an integer.
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

}  // namespace

std::string print_program(const Program& program) {
  return Printer(program).run();
}

std::string print_attribute_value(const AttributeValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return quote(*text);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return print_double(*number);
  }
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return fmt::format("{}", *number);
  }
  return std::get<bool>(value) ? "true" : "false";
}

bool is_reserved_word(std::string_view word) {
  static constexpr std::array<std::string_view, 7> kReserved = {
      "program", "stream", "group", "buffer", "read", "write", "rw"};
  return std::ranges::find(kReserved, word) != kReserved.end();
}

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '/' || c == '-';
}

}  // namespace braid
