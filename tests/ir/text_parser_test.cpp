#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "base/errors.h"
#include "ir/text.h"
#include "support/random_program.h"

namespace braid {
namespace {

/// A program in which nothing needs to make sense, but everything can be written down.
class NonsenseProgram {
 public:
  explicit NonsenseProgram(uint64_t seed) : random_(seed) {}

  Program make() {
    Program program;
    program.name = name();
    program.rank = static_cast<int>(any_integer());
    program.num_ranks = static_cast<int>(any_integer());
    program.num_events = static_cast<uint32_t>(random_());
    fill(program.streams, 3, [&] {
      return Stream{name(), static_cast<StreamKind>(below(3)), static_cast<int>(any_integer())};
    });
    fill(program.groups, 3, [&] {
      Group group{name(), static_cast<GroupKind>(below(6)), {}};
      fill(group.ranks, 3, [&] { return static_cast<int>(any_integer()); });
      return group;
    });
    fill(program.buffers, 4, [&] {
      return Buffer{name(),
                    dtype(),
                    shape(),
                    static_cast<BufferRole>(below(9)),
                    static_cast<Lifetime>(below(2)),
                    static_cast<Placement>(below(2))};
    });
    fill(program.sites, 3, [&] { return name(); });
    for (int64_t i = below(6); i > 0; --i) {
      add_task(program);
    }
    return program;
  }

 private:
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  int64_t any_integer() {
    return below(2) == 0 ? below(9) - 4 : static_cast<int64_t>(random_()) >> below(64);
  }
  DType dtype() { return static_cast<DType>(below(10)); }

  std::string name() {
    static const char* const kNames[] = {"x",   "layers.0.qkv", "read", "rw",  "program", "a->b",
                                         "-",   "x-",           "",     "e1",  "#1",      "a b",
                                         "inf", "\xC3\xA9",     "0x",   "f32", "\"\\",    "."};
    if (below(2) == 0) {
      return kNames[below(std::size(kNames))];
    }
    std::string text;
    for (int64_t i = below(5); i > 0; --i) {
      text += static_cast<char>(below(256));
    }
    return text;
  }

  Shape shape() {
    Shape result;
    for (int64_t i = below(Shape::kMaxRank + 1); i > 0; --i) {
      result.push_back(below(5));
    }
    return result;
  }

  AttributeValue value() {
    switch (below(5)) {
      case 0:
        return below(2) == 0;
      case 1:
        return any_integer();
      case 2:
        return static_cast<double>(below(100) - 50) / 8;
      case 3:
        return std::bit_cast<double>(random_());
      default:
        return name();
    }
  }

  template <class T, class Make>
  void fill(std::vector<T>& list, int64_t max_size, Make&& make) {
    for (int64_t i = below(max_size + 1); i > 0; --i) {
      list.push_back(make());
    }
  }

  BufferRange range(const Program& program) {
    BufferRange result;
    result.buffer = BufferId(static_cast<size_t>(below(6)));
    if (result.buffer.index() < program.buffers.size() && below(2) == 0) {
      result.end = program.buffers[result.buffer.index()].num_elems();
    } else {
      result.begin = any_integer();
      result.end = any_integer();
    }
    return result;
  }

  void add_task(Program& program) {
    OpSpec spec;
    spec.op = name();
    fill(spec.attributes, 3, [&] { return Attribute{name(), value()}; });
    fill(spec.operands, 4, [&] {
      return OperandSpec{dtype(), static_cast<Access>(below(3)), shape()};
    });
    Task task;
    task.operands_begin = static_cast<uint32_t>(program.operands.size());
    for (OperandSpec& operand : spec.operands) {
      program.operands.push_back(range(program));
      // Often what follows from the range, which is then not printed.
      const BufferId buffer = program.operands.back().buffer;
      if (buffer.index() < program.buffers.size() && below(2) == 0) {
        operand.dtype = program.buffers[buffer.index()].dtype;
        operand.shape = program.buffers[buffer.index()].shape;
      }
    }
    task.spec = program.specs.intern(spec);
    task.stream = StreamId(static_cast<size_t>(below(4)));
    task.label.phase = static_cast<Phase>(below(5));
    task.label.microbatch = static_cast<int32_t>(any_integer());
    task.label.virtual_stage = static_cast<int32_t>(any_integer());
    task.label.layer = static_cast<int32_t>(any_integer());
    if (below(2) == 0) {
      task.label.site = SiteId(static_cast<size_t>(below(5)));
    }
    if (below(2) == 0) {
      task.record = EventId(static_cast<size_t>(below(10)));
    }
    task.waits_begin = static_cast<uint32_t>(program.waits.size());
    fill(program.waits, 3, [&] { return EventId(static_cast<size_t>(below(10))); });
    task.num_waits = static_cast<uint32_t>(program.waits.size()) - task.waits_begin;
    program.tasks.push_back(task);
  }

  std::mt19937_64 random_;
};

void expect_inverses(const Program& program) {
  const std::string text = print_program(program);
  SCOPED_TRACE(text);
  Program parsed;
  ASSERT_NO_THROW(parsed = parse_program(text));
  EXPECT_EQ(parsed, program);
  EXPECT_EQ(print_program(parsed), text);
}

TEST(TextParser, IsTheInverseOfThePrinter) {
  for (uint64_t seed = 0; seed < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_inverses(random_program(seed, {.num_streams = 3, .num_ranks = 2}));
  }
}

TEST(TextParser, IsTheInverseOfThePrinterForNonsense) {
  for (uint64_t seed = 0; seed < 3000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_inverses(NonsenseProgram(seed).make());
  }
}

TEST(TextParser, AcceptsAnySpacingCommentsAndAccessWords) {
  const Program spaced = parse_program(
      "\n  # a comment\r\nprogram step rank = 0 ranks=1 events=0\r\n\n"
      "stream s kind=compute priority=-1\n\tbuffer x f32 [ 2, 4 ] io step host  \n"
      "op( read x ,rw x[ 0 : 8 ][8],write x->x f32[8]){a= 1 , b=\"\\x41\\u0042\"}s forward\n"
      "op(->x)s forward\n"
      "#op(");
  EXPECT_EQ(print_program(spaced),
            "program step rank=0 ranks=1 events=0\n"
            "stream s kind=compute priority=-1\n"
            "buffer x f32 [2,4] io step host\n"
            "op(x -> rw x [8], x, x [8]) {a=1, b=\"AB\"} s forward\n"
            "op(-> x) s forward\n");
}

TEST(TextParser, SurvivesDamagedText) {
  const std::string good = print_program(random_program(5, {.num_streams = 2, .num_ranks = 2}));
  std::mt19937_64 random(1);
  int num_refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (int edits = 0; edits < 3; ++edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 12));
      }
    }
    try {
      expect_inverses(parse_program(text));
    } catch (const DataError& error) {
      ++num_refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(num_refused, 1000);
}

TEST(TextParser, EveryPrefixIsAProgramOrRefused) {
  const std::string good = print_program(random_program(6, {.num_tasks = 5, .num_ranks = 2}));
  for (size_t size = 0; size < good.size(); ++size) {
    try {
      parse_program(std::string_view(good).substr(0, size));
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace braid
