#include "passes/tensor/bulk_overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/streams/insert_events.h"
#include "passes/tensor/ring_exchange.h"
#include "support/random_layers.h"
#include "support/symbolic.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kTables =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group tensor kind=tensor ranks=0,1\n"
    "buffer h f32 [2,4] io persistent device\n"
    "buffer norm f32 [4] param persistent device\n"
    "buffer w f32 [6,4] param persistent device\n"
    "buffer dy f32 [4,6] io persistent device\n"
    "buffer g f32 [6,4] main_grad persistent device\n"
    "buffer out f32 [2,4] io persistent device\n"
    "buffer n f32 [2,4] activation step device\n"
    "buffer r f32 [2] activation step device\n"
    "buffer x f32 [4,4] activation step device\n"
    "buffer dx f32 [4,4] activation step device\n"
    "buffer d f32 [2,4] activation step device\n";

const std::string kDgrad =
    "linear_dgrad(dy, w -> dx) {accumulate=false} s dgrad mb=0 layer=0 site=layers.0.mlp.fc1\n";
const std::string kNorm =
    "rmsnorm(h, norm -> n, r) {epsilon=1e-05} s dgrad mb=0 layer=0 site=layers.0.mlp_norm\n";
const std::string kWgrad =
    "linear_wgrad(x, dy -> rw g) {has_bias=false, accumulate=true} s wgrad mb=0 layer=0 "
    "site=layers.0.mlp.fc1\n";
const std::string kUse = "copy(d -> out) s dgrad mb=0 layer=0\n";

std::string gather(const std::string& stream) {
  return "all_gather(n -> x) {group=0} " + stream + " comm mb=0 layer=0 site=layers.0.mlp.fc1\n";
}
std::string scatter(const std::string& stream) {
  return "reduce_scatter(dx -> d) {group=0} " + stream +
         " comm mb=0 layer=0 site=layers.0.mlp.fc1\n";
}

PassResult overlap(const std::string& tasks, const SiteOverlaps& sites = default_site_overlaps()) {
  const Program program = parse_program(kTables + tasks);
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  PassResult result = bulk_overlap(program, {.sites = sites});
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_EQ(result.report.changed, !(result.program == program));
  EXPECT_EQ(run_in_order(result.program), run_in_order(program));
  const PassResult again = bulk_overlap(result.program, {.sites = sites});
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

/// From the first task on.
std::string tasks_of(const Program& program) {
  const std::string text = print_program(program);
  return text.substr(text.find("buffer d f32 [2,4] activation step device\n") + 42);
}

TEST(BulkOverlap, GathersUnderTheDgradAndScattersUnderTheWgrad) {
  const PassResult result = overlap(kDgrad + kNorm + gather("s") + kWgrad + scatter("s") + kUse);
  EXPECT_EQ(tasks_of(result.program),
            kNorm + gather("comm.tensor") + kDgrad + scatter("comm.tensor") + kWgrad + kUse);
  EXPECT_EQ(result.report.num_changes, 2);
  EXPECT_EQ(result.report.summary, "started 2 tensor-parallel calls earlier, beside a product");
  EXPECT_THAT(print_program(result.program),
              HasSubstr("stream comm.tensor kind=comm priority=1\n"));
}

// The consumer of dx waits for it, the wgrad for its input, and nobody for anything else.
TEST(BulkOverlap, ComputeWaitsWhereResultsAreRead) {
  const PassResult result = overlap(kDgrad + kNorm + gather("s") + kWgrad + scatter("s") + kUse);
  const Program program = insert_events(result.program).program;
  EXPECT_THAT(verify(program, 1), IsEmpty());
  std::string waits;
  for (const Task& task : program.tasks) {
    waits += program.spec(task).op + (task.num_waits > 0 ? "+ " : " ");
  }
  EXPECT_EQ(waits, "rmsnorm all_gather+ linear_dgrad reduce_scatter+ linear_wgrad+ copy+ ");
}

TEST(BulkOverlap, SumsUnderTheWgradWithoutSequenceParallelism) {
  const std::string tables_end = "copy(h -> n) s dgrad mb=0 layer=0\n" + gather("s");
  const std::string sum =
      "all_reduce(-> rw dx) {group=0} s comm mb=0 layer=0 site=layers.0.mlp.fc1\n";
  const std::string sum_moved =
      "all_reduce(-> rw dx) {group=0} comm.tensor comm mb=0 layer=0 site=layers.0.mlp.fc1\n";
  const std::string use = "copy(dx[0:8] [2,4] -> out) s dgrad mb=0 layer=0\n";
  const PassResult result = overlap(tables_end + kDgrad + kWgrad + sum + use);
  EXPECT_THAT(tasks_of(result.program), HasSubstr(kDgrad + sum_moved + kWgrad + use));
  EXPECT_EQ(result.report.num_changes, 1);
}

TEST(BulkOverlap, LooksAtTheSitesThatAreAskedFor) {
  const std::string tasks = kDgrad + kNorm + gather("s") + kWgrad + scatter("s") + kUse;
  const PassResult none = overlap(tasks, {});
  EXPECT_EQ(tasks_of(none.program), tasks);
  EXPECT_EQ(none.report.summary, "no site has a method");
  const PassResult wgrad = overlap(tasks, {{"fc1_wgrad", {OverlapMethod::kBulk}}});
  EXPECT_EQ(tasks_of(wgrad.program),
            kDgrad + scatter("comm.tensor") + kNorm + gather("comm.tensor") + kWgrad + kUse);
  const PassResult dgrad = overlap(tasks, {{"fc1_dgrad", {OverlapMethod::kBulk}}});
  EXPECT_EQ(tasks_of(dgrad.program),
            kNorm + gather("comm.tensor") + kDgrad + kWgrad + scatter("comm.tensor") + kUse);
  const PassResult other = overlap(tasks, {{"qkv_dgrad", {OverlapMethod::kBulk}}});
  EXPECT_EQ(other.report.num_changes, 0);
}

// A dgrad in pieces hides the gather under all of them.
TEST(BulkOverlap, GathersInFrontOfTheFirstPiece) {
  const std::string half =
      "linear_dgrad(dy[0:12] [2,6], w -> dx[0:8] [2,4]) {accumulate=false} s dgrad mb=0 layer=0 "
      "site=layers.0.mlp.fc1\n";
  const std::string rest =
      "linear_dgrad(dy[12:24] [2,6], w -> dx[8:16] [2,4]) {accumulate=false} s dgrad mb=0 layer=0 "
      "site=layers.0.mlp.fc1\n";
  const PassResult result =
      overlap(half + rest + kNorm + gather("s") + kWgrad + "copy(dx[0:8] [2,4] -> out) s dgrad\n",
              {{"fc1_dgrad", {OverlapMethod::kRing}}});
  EXPECT_THAT(tasks_of(result.program),
              HasSubstr(kNorm + gather("comm.tensor") + half + rest + kWgrad));
}

// The gather reads a value computed from the dgrad's result, so it cannot start before the dgrad.
TEST(BulkOverlap, GathersWhatDependsOnTheDgradBehindIt) {
  const std::string norm =
      "rmsnorm(dx[0:8] [2,4], norm -> n, r) {epsilon=1e-05} s dgrad mb=0 layer=0\n";
  const PassResult result = overlap(kDgrad + norm + gather("s") + kWgrad + scatter("s") + kUse);
  EXPECT_EQ(tasks_of(result.program),
            kDgrad + scatter("comm.tensor") + norm + gather("comm.tensor") + kWgrad + kUse);
}

// The W jobs of zero-bubble schedules have no dgrad: the gather runs beside the product before it.
TEST(BulkOverlap, GathersUnderAnyProductInFrontOfTheWgrad) {
  const std::string other =
      "linear_wgrad(h, dy[0:12] [2,6] -> rw g) {has_bias=false, accumulate=true} s wgrad mb=0 "
      "layer=1 site=layers.1.mlp.fc1\n";
  const std::string fill = "fill(-> d) {value=0.0} s dgrad mb=0 layer=0\n";
  const PassResult result = overlap(fill + other + kNorm + gather("s") + kWgrad + kUse);
  EXPECT_EQ(tasks_of(result.program), fill + kNorm + gather("comm.tensor") + other + kWgrad + kUse);
}

TEST(BulkOverlap, LeavesOtherGroupsAlone) {
  std::string tables = kTables;
  tables.replace(tables.find("kind=tensor"), 11, "kind=data");
  const Program program =
      parse_program(tables + kDgrad + kNorm + gather("s") + kWgrad + scatter("s") + kUse);
  const PassResult result = bulk_overlap(program, {});
  EXPECT_EQ(result.program, program);
  EXPECT_FALSE(result.report.changed);
}

/// First task after `task` that touches the buffer.
size_t next_user(const Program& program, size_t task, BufferId buffer) {
  for (++task; task < program.tasks.size(); ++task) {
    for (const BufferRange& range : program.operands_of(program.tasks[task])) {
      if (range.buffer == buffer) {
        return task;
      }
    }
  }
  return program.tasks.size();
}

/// Layers over two tensor ranks whose products are at sites that are looked at; results of dgrads
/// are summed over the ranks right before they are read.
Program random_tensor_layers(uint64_t seed) {
  const Program layers = random_layers(seed, {.num_ranks = 2, .gathers = seed % 2 == 0});
  std::vector<std::vector<BufferRange>> sums(layers.tasks.size() + 1);  // before a task
  for (size_t i = 0; i < layers.tasks.size(); ++i) {
    if (layers.spec(layers.tasks[i]).op == "linear_dgrad") {
      const BufferRange dx = layers.operands_of(layers.tasks[i]).back();
      sums[next_user(layers, i, dx.buffer)].push_back(dx);
    }
  }
  Program program = select_tasks(layers, {});
  program.sites = {"l.fc1", "l.fc2", "l.qkv"};
  const auto append = [&](Task task, SpecId spec, std::span<const BufferRange> ranges) {
    task.spec = spec;
    task.operands_begin = static_cast<uint32_t>(program.operands.size());
    task.label.site = SiteId((seed + program.tasks.size()) % program.sites.size());
    program.operands.insert(program.operands.end(), ranges.begin(), ranges.end());
    program.tasks.push_back(task);
  };
  for (size_t i = 0; i < layers.tasks.size(); ++i) {
    Task sum = layers.tasks[i];
    sum.label.phase = Phase::kComm;
    for (const BufferRange& dx : sums[i]) {
      const OpSpec spec{
          "all_reduce", {{"group", int64_t{0}}}, {{DType::kF32, Access::kReadWrite, {4, 8}}}};
      append(sum, program.specs.intern(spec), {&dx, 1});
    }
    append(layers.tasks[i], layers.tasks[i].spec, layers.operands_of(layers.tasks[i]));
  }
  return program;
}

TEST(BulkOverlap, KeepsTheMeaningOfRandomLayers) {
  int64_t num_moves = 0;
  for (uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = random_tensor_layers(seed);
    const PassResult result = bulk_overlap(program, {});
    num_moves += result.report.num_changes;
    EXPECT_EQ(run_in_order(result.program), run_in_order(program));
    EXPECT_EQ(bulk_overlap(result.program, {}).program, result.program);
    const Program placed = insert_events(result.program).program;
    EXPECT_THAT(verify(placed, 1), IsEmpty());
    EXPECT_EQ(run_interleaved(placed, seed), run_in_order(program));
  }
  EXPECT_GT(num_moves, 0);
}

// What is in pieces has other specs, so that meanings cannot be compared here; see the executor's
// test for the bits. The program stays sound, and other passes take it.
TEST(RingExchange, KeepsRandomLayersSound) {
  SiteOverlaps sites = default_site_overlaps();
  for (auto& [name, site] : sites) {
    site = {OverlapMethod::kChunked, 3};
  }
  int64_t num_split = 0;
  for (uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PassResult split =
        ring_exchange(random_tensor_layers(seed), {.sites = sites, .min_rows = 1});
    num_split += split.report.num_changes;
    EXPECT_THAT(verify(split.program, 1, Ordering::kProgramOrder), IsEmpty());
    const Program placed = insert_events(bulk_overlap(split.program, {}).program).program;
    EXPECT_THAT(verify(placed, 1), IsEmpty());
    EXPECT_EQ(run_interleaved(placed, seed), run_in_order(split.program));
  }
  EXPECT_GT(num_split, 0);
}

/// The backward of a row-parallel product whose gradient ranks gather as FP8 copies.
const std::string kCopies =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group tensor kind=tensor ranks=0,1\n"
    "buffer p8 f8e4m3 [128,128] activation persistent device\n"
    "buffer p8t f8e4m3 [128,128] activation persistent device\n"
    "buffer p_scales f32 [1,128] activation persistent device\n"
    "buffer pt_scales f32 [1,128] activation persistent device\n"
    "buffer w8t f8e4m3 [128,128] param persistent device\n"
    "buffer w_scales f32 [1,4] param persistent device\n"
    "buffer x8t f8e4m3 [128,256] activation persistent device\n"
    "buffer x_scales f32 [2,128] activation persistent device\n"
    "buffer g f32 [128,128] main_grad persistent device\n"
    "buffer dx f32 [256,128] activation persistent device\n"
    "buffer q f32 [256,256] activation persistent device\n"
    "buffer a f32 [256,128] activation persistent device\n"
    "buffer l f32 [2,2,128] activation persistent device\n"
    "buffer dq f32 [256,256] activation persistent device\n"
    "buffer dy8 f8e4m3 [256,128] activation step device\n"
    "buffer b f32 [2,128] activation step device\n"
    "buffer dy_scales f32 [1,256] activation step device\n"
    "buffer dyt_scales f32 [2,128] activation step device\n"
    "buffer bt f8e4m3 [256,128] activation step device\n"
    "buffer dy8t f8e4m3 [128,256] activation step device\n";

std::string copies_gather(const std::string& from, const std::string& to,
                          const std::string& stream) {
  return "all_gather(" + from + " -> " + to + ") {group=0} " + stream +
         " comm mb=0 layer=0 site=layers.0.mlp.fc2.sum." + to + "\n";
}

const std::string kRowsJoined = "join_blocks(b -> dy_scales) s dgrad mb=0 layer=0\n";
const std::string kCopiesDgrad =
    "scaled_linear_dgrad(dy8, dy_scales, w8t, w_scales -> dx) {block=128} s dgrad mb=0 layer=0 "
    "site=layers.0.mlp.fc2\n";
const std::string kColumnsJoined = "join_blocks(bt -> dy8t) s wgrad mb=0 layer=0\n";
const std::string kCopiesWgrad =
    "scaled_linear_wgrad(x8t, x_scales, dy8t, dyt_scales -> rw g) {block=128, accumulate=true} s "
    "wgrad mb=0 layer=0 site=layers.0.mlp.fc2\n";

std::string rows(const std::string& stream) {
  return copies_gather("p8", "dy8", stream) + copies_gather("p_scales", "b", stream);
}
std::string columns(const std::string& stream) {
  return copies_gather("pt_scales", "dyt_scales", stream) + copies_gather("p8t", "bt", stream);
}

/// From the first gather on, of a program whose copies are gathered on the compute stream.
std::string overlapped_copies(const std::string& behind, int64_t num_changes) {
  const Program program = parse_program(kCopies + rows("s") + kRowsJoined + kCopiesDgrad +
                                        columns("s") + kColumnsJoined + kCopiesWgrad + behind);
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  const PassResult result = bulk_overlap(program, {});
  EXPECT_EQ(result.report.num_changes, num_changes);
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_EQ(bulk_overlap(result.program, {}).program, result.program);
  const std::string text = print_program(result.program);
  return text.substr(text.find("all_gather(p8 "));
}

TEST(BulkOverlap, GathersColumnsOfCopiesUnderTheDgrad) {
  EXPECT_EQ(overlapped_copies("", 2), rows("comm.tensor") + kRowsJoined + columns("comm.tensor") +
                                          kCopiesDgrad + kColumnsJoined + kCopiesWgrad);
}

// Only if it comes next, in the same layer, and does not depend on the weight gradient.
TEST(BulkOverlap, GathersColumnsOfCopiesUnderAttentionToo) {
  const auto attention = [](int layer, const std::string& dy) {
    return "attention_backward(q, a, l, " + dy +
           " -> dq) {heads=2, kv_heads=1, head_size=64, sequence=128, scale=0.5} s dgrad mb=0 "
           "layer=" +
           std::to_string(layer) + "\n";
  };
  const std::string use = "fill(-> dx) {value=0.0} s dgrad mb=0 layer=0\n";
  const std::string begin = rows("comm.tensor") + kRowsJoined + columns("comm.tensor");
  EXPECT_EQ(overlapped_copies(attention(0, "dx") + use, 3),
            begin + kCopiesDgrad + attention(0, "dx") + kColumnsJoined + kCopiesWgrad + use);
  for (const std::string& other :
       {attention(1, "dx"), kCopiesDgrad + attention(0, "dx"),
        "fill(-> g) {value=0.0} s dgrad mb=0 layer=0\n" + attention(0, "dx")}) {
    EXPECT_EQ(overlapped_copies(other + use, 2),
              begin + kCopiesDgrad + kColumnsJoined + kCopiesWgrad + other + use);
  }
}

/// Rank 0 of 3 in a ring, as ring_exchange leaves it: the blocks of rows are [2,6].
constexpr const char* kRingTables =
    "program step rank=0 ranks=3 events=0\n"
    "stream s kind=compute priority=0\n"
    "group tensor kind=tensor ranks=0,1,2\n"
    "buffer own f32 [2,6] io persistent device\n"
    "buffer part f32 [2,4] io persistent device\n"
    "buffer w f32 [6,4] param persistent device\n"
    "buffer g f32 [6,4] main_grad persistent device\n"
    "buffer dx f32 [6,4] io persistent device\n"
    "buffer dy f32 [6,6] activation step device\n"
    "buffer x f32 [6,4] activation step device\n";

// A gather between two blocks of the ring would hold up the pieces that read the later ones.
TEST(BulkOverlap, GathersBehindTheLastBlockOfARing) {
  const auto shift = [](const std::string& from, const std::string& to) {
    return "ring_shift(" + from + " -> " + to + ") {group=0, shift=1} comm.tensor comm mb=0\n";
  };
  const auto piece = [](const std::string& from, const std::string& to) {
    return "linear_dgrad(" + from + ", w -> " + to +
           ") {accumulate=false} s dgrad mb=0 layer=0 site=layers.0.mlp.fc2\n";
  };
  const std::string first = "dy[24:36] [2,6]";
  const std::string second = "dy[12:24] [2,6]";
  const std::string ring =
      shift("own", first) + piece("own", "dx[0:8] [2,4]") + shift(first, second);
  const std::string pieces = piece(first, "dx[16:24] [2,4]") + piece(second, "dx[8:16] [2,4]");
  const std::string copy = "copy(own -> dy[0:12] [2,6]) s comm mb=0\n";
  const std::string columns = "all_gather(part -> x) {group=0} comm.tensor comm mb=0\n";
  const std::string wgrad =
      "linear_wgrad(x, dy -> rw g) {has_bias=false, accumulate=true} s wgrad mb=0 layer=0 "
      "site=layers.0.mlp.fc2\n";
  std::string tables = kRingTables;
  tables.insert(tables.find("group "), "stream comm.tensor kind=comm priority=1\n");
  const Program program = parse_program(tables + ring + pieces + copy + columns + wgrad);
  ASSERT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  const std::string text = print_program(bulk_overlap(program, {}).program);
  EXPECT_EQ(text.substr(text.find("ring_shift(own")), ring + columns + pieces + copy + wgrad);
}

}  // namespace
}  // namespace braid
