#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "ir/text.h"
#include "ir/text_cursor.h"

namespace braid {
namespace {

constexpr uint32_t kAmbiguous = UINT32_MAX;
// Limits for name suggestions. Searching more or longer names takes too long.
constexpr size_t kMaxSuggestedNames = 1000;
constexpr size_t kMaxSuggestedSize = 100;

/// Maps the names of one kind of object to their indices.
class NameTable {
 public:
  void add(std::string name, size_t index) {
    const auto [entry, is_new] = ids_.try_emplace(std::move(name), static_cast<uint32_t>(index));
    if (!is_new) {
      entry->second = kAmbiguous;
    }
  }
  std::optional<uint32_t> find(const std::string& name) const {
    const auto entry = ids_.find(name);
    return entry == ids_.end() ? std::nullopt : std::optional(entry->second);
  }
  std::string suggestion(std::string_view name) const {
    std::vector<std::string_view> names;
    if (ids_.size() > kMaxSuggestedNames || name.size() > kMaxSuggestedSize) {
      return {};
    }
    for (const auto& entry : ids_) {
      if (entry.first.size() <= kMaxSuggestedSize) {
        names.push_back(entry.first);
      }
    }
    std::ranges::sort(names);  // gives the same suggestion on every run
    return did_you_mean(name, names);
  }

 private:
  std::unordered_map<std::string, uint32_t> ids_;
};

/// An operand as parsed.
struct ParsedOperand {
  OperandSpec spec;
  BufferRange range;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : cursor_(text) {}

  Program run() {
    if (!cursor_.next_statement()) {
      cursor_.fail("a line that starts with \"program\"");
    }
    parse_program_line();
    while (cursor_.next_statement()) {
      parse_statement();
      cursor_.expect_line_end();
    }
    return std::move(program_);
  }

 private:
  void parse_statement() {
    const Word first = cursor_.word("a stream, group, buffer or task");
    if (first.is_keyword("stream")) {
      parse_stream();
    } else if (first.is_keyword("group")) {
      parse_group();
    } else if (first.is_keyword("buffer")) {
      parse_buffer();
    } else if (first.is_keyword("program")) {
      cursor_.fail("only one program line");
    } else {
      parse_task(first.text);
    }
  }

  void parse_program_line() {
    if (!cursor_.at_keyword("program")) {
      cursor_.fail("a line that starts with \"program\"");
    }
    cursor_.word("program");
    program_.name = cursor_.word("a program name").text;
    program_.rank = parse_int_value("rank");
    program_.num_ranks = parse_int_value("ranks");
    cursor_.expect_key("events");
    program_.num_events =
        static_cast<uint32_t>(cursor_.integer("a number of events", 0, UINT32_MAX));
    cursor_.expect_line_end();
  }

  void parse_stream() {
    Stream stream;
    stream.name = cursor_.word("a stream name").text;
    cursor_.expect_key("kind");
    stream.kind =
        parse_enum("a stream kind", stream_kind_name,
                   std::array{StreamKind::kCompute, StreamKind::kComm, StreamKind::kCopy});
    stream.priority = parse_int_value("priority");
    stream.left_sms = parse_count_if("left_sms");
    streams_.add(stream.name, program_.streams.size());
    program_.streams.push_back(std::move(stream));
  }

  void parse_group() {
    Group group;
    group.name = cursor_.word("a group name").text;
    cursor_.expect_key("kind");
    group.kind = parse_enum("a group kind", group_kind_name,
                            std::array{GroupKind::kData, GroupKind::kTensor, GroupKind::kPipeline,
                                       GroupKind::kContext, GroupKind::kExpert, GroupKind::kWorld});
    cursor_.expect_key("ranks");
    if (!cursor_.at_line_end()) {
      do {
        group.ranks.push_back(parse_int("a rank"));
      } while (cursor_.accept(","));
    }
    group.max_sms = parse_count_if("max_sms");
    program_.groups.push_back(std::move(group));
  }

  void parse_buffer() {
    Buffer buffer;
    buffer.name = cursor_.word("a buffer name").text;
    buffer.dtype = parse_dtype_word("a dtype");
    cursor_.expect("[");
    buffer.shape = parse_shape_after_bracket();
    buffer.role = parse_enum(
        "a buffer role", role_name,
        std::array{BufferRole::kParam, BufferRole::kMainWeight, BufferRole::kGrad,
                   BufferRole::kMainGrad, BufferRole::kOptimizerState, BufferRole::kActivation,
                   BufferRole::kGathered, BufferRole::kScratch, BufferRole::kIo});
    buffer.lifetime =
        parse_enum("a lifetime", lifetime_name, std::array{Lifetime::kPersistent, Lifetime::kStep});
    buffer.placement =
        parse_enum("a placement", placement_name, std::array{Placement::kDevice, Placement::kHost});
    buffers_.add(buffer.name, program_.buffers.size());
    program_.buffers.push_back(std::move(buffer));
  }

  void parse_task(std::string op) {
    Task task;
    OpSpec spec;
    spec.op = std::move(op);
    task.operands_begin = static_cast<uint32_t>(program_.operands.size());
    parse_operands(spec);
    parse_attributes(spec);
    task.spec = program_.specs.intern(spec);
    task.stream = StreamId(parse_reference("a stream", streams_));
    task.label.phase = parse_enum(
        "a phase", phase_name,
        std::array{Phase::kForward, Phase::kDgrad, Phase::kWgrad, Phase::kOptimizer, Phase::kComm});
    parse_label(task.label);
    if (cursor_.accept_key("record")) {
      task.record = parse_event();
    }
    parse_waits(task);
    program_.tasks.push_back(task);
  }

  void parse_operands(OpSpec& spec) {
    cursor_.expect("(");
    if (cursor_.accept(")")) {
      return;
    }
    bool past_arrow = cursor_.accept("->");
    while (true) {
      ParsedOperand operand = parse_operand(past_arrow ? Access::kWrite : Access::kRead);
      spec.operands.push_back(std::move(operand.spec));
      program_.operands.push_back(operand.range);
      if (cursor_.accept(")")) {
        return;
      }
      if (!past_arrow && cursor_.accept("->")) {
        past_arrow = true;
      } else if (!cursor_.accept(",")) {
        cursor_.fail(past_arrow ? "\",\" or \")\"" : "\",\", \"->\" or \")\"");
      }
    }
  }

  ParsedOperand parse_operand(Access default_access) {
    ParsedOperand operand;
    operand.spec.access = parse_access(default_access);
    operand.range.buffer = BufferId(parse_reference("a buffer", buffers_));
    const bool known = operand.range.buffer.value < program_.buffers.size();
    const Buffer* buffer = known ? &program_.buffers[operand.range.buffer.index()] : nullptr;
    std::optional<Shape> shape;
    bool has_range = false;
    if (cursor_.accept("[")) {
      has_range = parse_range_or_shape(operand.range, shape);
    }
    if (!has_range && !known) {
      cursor_.fail("a range, because the buffer does not exist");
    }
    if (!has_range) {
      operand.range.end = buffer->num_elems();
    }
    if (!known || (!shape && cursor_.at_word())) {
      operand.spec.dtype = parse_dtype_word("a dtype, a shape, \",\", \"->\" or \")\"");
    } else {
      operand.spec.dtype = buffer->dtype;
    }
    if (!shape && cursor_.accept("[")) {
      shape = parse_shape_after_bracket();
    }
    operand.spec.shape =
        shape ? *shape : default_shape(operand.range, has_range ? nullptr : buffer);
    return operand;
  }

  Access parse_access(Access default_access) {
    if (cursor_.accept_keyword("rw")) {
      return Access::kReadWrite;
    }
    if (cursor_.accept_keyword("read")) {
      return Access::kRead;
    }
    return cursor_.accept_keyword("write") ? Access::kWrite : default_access;
  }

  /// Parses what follows "[": "3:5]" is a range and returns true, "3,5]" is a shape.
  bool parse_range_or_shape(BufferRange& range, std::optional<Shape>& shape) {
    if (cursor_.accept("]")) {
      shape = Shape();
      return false;
    }
    const size_t begin = cursor_.position();
    const int64_t first = cursor_.integer("an element or a dimension");
    if (!cursor_.accept(":")) {
      cursor_.rewind(begin);
      shape = parse_shape_after_bracket();
      return false;
    }
    range.begin = first;
    range.end = cursor_.integer("the end of the range");
    cursor_.expect("]");
    return true;
  }

  Shape default_shape(const BufferRange& range, const Buffer* whole) {
    if (whole != nullptr) {
      return whole->shape;
    }
    // A range with unordered or very large ends has no valid shape.
    if (range.begin < 0 || range.end < range.begin || range.end - range.begin > kMaxElems) {
      cursor_.fail("a shape, because the range has none");
    }
    return Shape{range.end - range.begin};
  }

  Shape parse_shape_after_bracket() {
    Shape shape;
    const size_t begin = cursor_.position();
    if (cursor_.accept("]")) {
      return shape;
    }
    do {
      if (shape.rank() == Shape::kMaxRank) {
        cursor_.fail(fmt::format("\"]\" after {} dimensions", Shape::kMaxRank));
      }
      shape.push_back(cursor_.integer("a dimension", 0, kMaxElems));
    } while (cursor_.accept(","));
    cursor_.expect("]");
    if (!is_valid_shape(shape)) {
      cursor_.fail_at(begin, fmt::format("a shape of at most {} elements", kMaxElems));
    }
    return shape;
  }

  void parse_attributes(OpSpec& spec) {
    if (!cursor_.accept("{")) {
      return;
    }
    do {
      Attribute attribute;
      attribute.name = cursor_.word("an attribute name").text;
      cursor_.expect("=");
      attribute.value = parse_attribute_value();
      spec.attributes.push_back(std::move(attribute));
    } while (cursor_.accept(","));
    cursor_.expect("}");
  }

  AttributeValue parse_attribute_value() {
    if (cursor_.at_quoted_word()) {
      return cursor_.word("a text").text;
    }
    const size_t begin = cursor_.position();
    const std::string_view text = cursor_.number_text();
    if (text == "true" || text == "false") {
      return text == "true";
    }
    if (text == "nan") {
      return std::numeric_limits<double>::quiet_NaN();
    }
    const bool is_double = text.find_first_of(".eEn") != std::string_view::npos;
    const auto number = is_double ? parse_number<double>(text) : parse_number<int64_t>(text);
    if (!number) {
      cursor_.fail_at(begin, "true, false, a number or a quoted text");
    }
    return *number;
  }

  template <class Number>
  static std::optional<AttributeValue> parse_number(std::string_view text) {
    Number value{};
    const char* text_end = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), text_end, value);
    if (error != std::errc() || end != text_end || value != value) {
      return std::nullopt;
    }
    return value;
  }

  void parse_label(Label& label) {
    const auto parse_index = [&](std::string_view key, int32_t& index) {
      if (cursor_.accept_key(key)) {
        index = parse_int("an index");
      }
    };
    parse_index("mb", label.microbatch);
    parse_index("vs", label.virtual_stage);
    parse_index("layer", label.layer);
    if (cursor_.accept_key("site")) {
      label.site = cursor_.accept("#") ? SiteId(parse_index_number())
                                       : intern_site(cursor_.word("a site").text);
    }
  }

  SiteId intern_site(const std::string& name) {
    const auto [entry, is_new] = sites_.try_emplace(name, program_.sites.size());
    if (is_new) {
      program_.sites.push_back(name);
    }
    return entry->second;
  }

  void parse_waits(Task& task) {
    task.waits_begin = static_cast<uint32_t>(program_.waits.size());
    if (cursor_.accept_key("wait")) {
      do {
        program_.waits.push_back(parse_event());
      } while (cursor_.accept(","));
    }
    task.num_waits = static_cast<uint32_t>(program_.waits.size()) - task.waits_begin;
  }

  EventId parse_event() {
    cursor_.expect("e");
    return EventId(static_cast<size_t>(cursor_.integer("an event number", 0, UINT32_MAX)));
  }

  /// Parses a name in `table`, or an index such as "#3".
  size_t parse_reference(std::string_view what, const NameTable& table) {
    if (cursor_.accept("#")) {
      return parse_index_number();
    }
    const size_t begin = cursor_.position();
    const Word name = cursor_.word(what);
    const std::optional<uint32_t> id = table.find(name.text);
    if (!id) {
      cursor_.fail_at(
          begin, fmt::format("{} that is declared above{}", what, table.suggestion(name.text)));
    }
    if (*id == kAmbiguous) {
      cursor_.fail_at(begin, "\"#\" and an index, because the name is not unique");
    }
    return *id;
  }

  size_t parse_index_number() {
    return static_cast<size_t>(cursor_.integer("an index", 0, UINT32_MAX));
  }

  int parse_int(std::string_view expectation) {
    return static_cast<int>(cursor_.integer(expectation, INT32_MIN, INT32_MAX));
  }

  /// KEY=NUMBER, or 0 if the key does not come next.
  int parse_count_if(std::string_view key) {
    return cursor_.accept_key(key) ? parse_int("an integer") : 0;
  }

  int parse_int_value(std::string_view key) {
    cursor_.expect_key(key);
    return parse_int("an integer");
  }

  DType parse_dtype_word(std::string_view expectation) {
    const size_t begin = cursor_.position();
    const Word word = cursor_.word(expectation);
    const std::optional<DType> dtype = word.is_quoted ? std::nullopt : parse_dtype(word.text);
    if (!dtype) {
      cursor_.fail_at(begin, expectation);
    }
    return *dtype;
  }

  template <class Enum, size_t kCount>
  Enum parse_enum(std::string_view what, std::string_view (*name_of)(Enum),
                  const std::array<Enum, kCount>& values) {
    const size_t begin = cursor_.position();
    const Word word = cursor_.word(what);
    for (const Enum value : values) {
      if (word.is_keyword(name_of(value))) {
        return value;
      }
    }
    std::vector<std::string_view> names;
    std::ranges::transform(values, std::back_inserter(names), name_of);
    cursor_.fail_at(begin, fmt::format("{} ({})", what, join(names, ", ")));
  }

  TextCursor cursor_;
  Program program_;
  NameTable streams_;
  NameTable buffers_;
  std::unordered_map<std::string, SiteId> sites_;
};

}  // namespace

Program parse_program(std::string_view text) {
  return Parser(text).run();
}

}  // namespace braid
