// How long it takes to make the schedules of a pipeline and to check the programs of all its ranks
// against each other.
//   braid_bench_ranks [tensor context pipeline virtual_stages data microbatches]   default: 8 2 16
//   8 64 64

#include <fmt/core.h>

#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/program.h"
#include "parallel/mesh.h"
#include "parallel/schedule.h"
#include "parallel/schedule_stats.h"
#include "parallel/verify_ranks.h"
#include "passes/streams/insert_events.h"
#include "process_use.h"

namespace braid {
namespace {

constexpr int64_t kElems = 1024;

struct Sizes {
  MeshSizes mesh;
  int virtual_stages = 1;
  int64_t microbatches = 1;
};

/// The step of one rank: per job a layer with a gather and a scatter over the tensor group on both
/// sides of its two halves, ring shifts over the context group, the messages of the pipeline; then
/// gradients over all copies.
class RankWriter {
 public:
  RankWriter(const Sizes& sizes, const Mesh& mesh, int rank)
      : sizes_(sizes), mesh_(mesh), rank_(rank), builder_("bench", rank, mesh.num_ranks()) {
    compute_ = add_stream("compute", StreamKind::kCompute);
    tensor_ = add_stream("comm.tensor", StreamKind::kComm);
    context_ = add_stream("comm.context", StreamKind::kComm);
    data_ = add_stream("comm.data", StreamKind::kComm);
    gathered_ = buffer("gathered", kElems * sizes.mesh.tensor);
    block_ = buffer("block", kElems);
    for (int stage = 0; stage < sizes.virtual_stages; ++stage) {
      grads_.push_back(buffer(fmt::format("grad{}", stage), kElems));
    }
  }

  Program write(const Schedule& schedule, const ScheduleOptions& options) {
    for (const Job& job : schedule) {
      run(job, options);
    }
    label_ = {.phase = Phase::kComm};
    for (int stage = sizes_.virtual_stages; stage-- > 0;) {
      label_.layer = stage;
      add("all_reduce", "gradient", {{grads_[static_cast<size_t>(stage)], Access::kReadWrite}},
          data_);
    }
    add("all_reduce", "world", {{hidden_, Access::kReadWrite}}, data_);
    return builder_.take();
  }

 private:
  using Use = std::pair<BufferId, Access>;

  StreamId add_stream(std::string name, StreamKind kind) {
    return builder_.add_stream({.name = std::move(name), .kind = kind});
  }
  BufferId buffer(std::string name, int64_t elems) {
    return builder_.add_buffer(
        {.name = std::move(name), .shape = {elems}, .lifetime = Lifetime::kPersistent});
  }

  int64_t group(const std::string& name) {
    const auto [found, is_new] = groups_.try_emplace(name);
    if (is_new) {
      found->second = static_cast<int64_t>(builder_.add_group(mesh_.group(name, rank_)).index());
    }
    return found->second;
  }

  void add(const char* op, const char* group_name, const std::vector<Use>& uses, StreamId stream,
           std::vector<Attribute> attributes = {}) {
    OpSpec spec{.op = op, .attributes = std::move(attributes), .operands = {}};
    if (group_name != nullptr) {
      spec.attributes.push_back({"group", group(group_name)});
    }
    std::vector<BufferRange> ranges;
    for (const auto& [id, access] : uses) {
      ranges.push_back(builder_.whole(id));
      spec.operands.push_back({DType::kF32, access, {ranges.back().end}});
    }
    builder_.add_task(spec, ranges, stream, label_);
  }

  void compute(Phase phase, int tasks) {
    label_.phase = phase;
    for (int i = 0; i < tasks; ++i) {
      add("copy", nullptr, {{hidden_, Access::kRead}, {block_, Access::kWrite}}, compute_);
      add("copy", nullptr, {{block_, Access::kRead}, {hidden_, Access::kWrite}}, compute_);
    }
  }

  void half_layer(Phase phase) {
    label_.phase = Phase::kComm;
    add("all_gather", "tensor", {{hidden_, Access::kRead}, {gathered_, Access::kWrite}}, tensor_);
    compute(phase, 5);
    for (int i = 1; i < sizes_.mesh.context; ++i) {
      label_.phase = Phase::kComm;
      add("ring_shift", "context", {{hidden_, Access::kRead}, {block_, Access::kWrite}}, context_,
          {{"shift", int64_t{1}}});
    }
    compute(phase, 5);
    label_.phase = Phase::kComm;
    add("reduce_scatter", "tensor", {{gathered_, Access::kRead}, {hidden_, Access::kWrite}},
        tensor_);
  }

  void run(const Job& job, const ScheduleOptions& options) {
    const bool forward = job.kind == JobKind::kForward;
    const int stage = stage_of(options, mesh_.position(rank_).pipeline, job.virtual_stage);
    label_ = {.microbatch = job.microbatch, .virtual_stage = job.virtual_stage, .layer = stage};
    // A send must not hold up the next job.
    hidden_ = buffer(
        fmt::format("m{}.v{}.{}", job.microbatch, job.virtual_stage, job_letter(job.kind)), kElems);
    message("recv", stage + (forward ? -1 : 1), forward, options);
    half_layer(forward ? Phase::kForward : Phase::kDgrad);
    half_layer(forward ? Phase::kForward : Phase::kDgrad);
    if (!forward) {
      label_.phase = Phase::kWgrad;
      add("copy", nullptr,
          {{hidden_, Access::kRead},
           {grads_[static_cast<size_t>(job.virtual_stage)], Access::kWrite}},
          compute_);
    }
    message("send", stage + (forward ? 1 : -1), forward, options);
  }

  void message(const std::string& op, int stage, bool forward, const ScheduleOptions& options) {
    if (stage < 0 || stage >= options.num_stages()) {
      return;
    }
    const int64_t peer = place_of(options, stage).rank;
    const bool sends = op == "send";
    label_.phase = Phase::kComm;
    const char* name = forward ? "pipeline.forward" : "pipeline.backward";
    add(op.c_str(), name, {{hidden_, sends ? Access::kRead : Access::kWrite}},
        sends ? send_stream(fmt::format("send.{}.{}", name, peer)) : compute_,
        {{"peer", peer}, {"channel", int64_t{0}}});
  }

  StreamId send_stream(const std::string& name) {
    const auto [found, is_new] = send_streams_.try_emplace(name);
    if (is_new) {
      found->second = add_stream(name, StreamKind::kComm);
    }
    return found->second;
  }

  const Sizes& sizes_;
  const Mesh& mesh_;
  int rank_;
  ProgramBuilder builder_;
  StreamId compute_;
  StreamId tensor_;
  StreamId context_;
  StreamId data_;
  BufferId hidden_;
  BufferId gathered_;
  BufferId block_;
  std::vector<BufferId> grads_;
  std::map<std::string, int64_t> groups_;
  std::map<std::string, StreamId> send_streams_;
  Label label_;
};

void measure(const Sizes& sizes) {
  const Mesh mesh(sizes.mesh);
  const ScheduleOptions options{.kind = sizes.virtual_stages == 1
                                            ? ScheduleKind::kOneForwardOneBackward
                                            : ScheduleKind::kInterleaved,
                                .num_ranks = sizes.mesh.pipeline,
                                .virtual_stages = sizes.virtual_stages,
                                .num_microbatches = sizes.microbatches};
  ProcessorClock clock;
  const std::vector<Schedule> schedules = make_schedules(options);
  const double schedule_s = clock.lap();
  const double bubble = schedule_stats(options).bubble_fraction;
  clock.lap();

  // Programs differ by tensor, context and pipeline position; data ranks share them.
  std::vector<Program> programs;
  std::vector<uint32_t> program_of(static_cast<size_t>(mesh.num_ranks()));
  std::map<std::array<int, 3>, uint32_t> known;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    const MeshPosition at = mesh.position(rank);
    const auto [found, is_new] = known.try_emplace({at.tensor, at.context, at.pipeline},
                                                   static_cast<uint32_t>(programs.size()));
    if (is_new) {
      programs.push_back(
          insert_events(RankWriter(sizes, mesh, rank)
                            .write(schedules[static_cast<size_t>(at.pipeline)], options))
              .program);
    }
    program_of[static_cast<size_t>(rank)] = found->second;
  }
  const double build_s = clock.lap();
  const double build_gib = peak_gib();

  RankPrograms ranks{
      .programs = {}, .program_of = program_of, .ranks_of_group = [&](int rank, GroupId group) {
        const Program& program = programs[program_of[static_cast<size_t>(rank)]];
        return mesh.group(program.groups[group.index()].name, rank).ranks;
      }};
  for (const Program& program : programs) {
    ranks.programs.push_back(&program);
  }
  const std::vector<Violation> violations = verify_ranks(ranks, {.one_order_of_collectives = true});
  const double verify_s = clock.lap();
  fmt::print("{} ranks, {} programs of {} tasks, bubble {:.3f}\n", mesh.num_ranks(),
             programs.size(), programs.front().tasks.size(), bubble);
  fmt::print(
      "schedules {:.3f} s, programs {:.2f} s, verify_ranks {:.2f} s; peak {:.2f} GiB, {:.2f} of "
      "them programs\n",
      schedule_s, build_s, verify_s, peak_gib(), build_gib);
  for (const Violation& violation : violations) {
    fmt::print("{}\n", violation.message);
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  std::array<int, 6> sizes = {8, 2, 16, 8, 64, 64};
  for (int i = 1; i < argc && i <= 6; ++i) {
    sizes[static_cast<size_t>(i - 1)] = std::atoi(argv[i]);
  }
  braid::measure(
      {.mesh = {.tensor = sizes[0], .context = sizes[1], .data = sizes[4], .pipeline = sizes[2]},
       .virtual_stages = sizes[3],
       .microbatches = sizes[5]});
}
