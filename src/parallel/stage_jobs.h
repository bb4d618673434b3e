#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "model/forward.h"
#include "model/model_spec.h"
#include "ops/quantize_products.h"
#include "parallel/expand.h"
#include "parallel/fp8_parts.h"
#include "parallel/mesh.h"
#include "parallel/parallel_options.h"
#include "parallel/sent_messages.h"
#include "parallel/task_writer.h"
#include "parallel/unit_buffers.h"

namespace braid {

/// Adds the jobs of a rank's virtual stages: their nodes and the messages between stages; first,
/// the tasks that make the FP8 copies of weights that ranks gather. If graphs have tallies, there
/// is a buffer "tallies" i64 (kIo, persistent) for all of them, which is zero first. The compute
/// stream receives tensors, at their place in program order. Sends run on separate streams, because
/// a send ends only when its receiver takes the message, and two ranks that send to each other
/// would deadlock. There is one send stream per direction and peer: in a V shape a rank sends to
/// two peers in one direction, and neither send may block the other. A sent buffer returns to the
/// compute stream (`undefine`) when the message must have arrived; see sent_messages.h.
class StageJobs {
 public:
  struct Options {
    ForwardOptions forward;  ///< of a microbatch; stage and shards are set here
    bool backward = true;
    DType main_grads_dtype = DType::kF32;  ///< OptimizerOptions
    int64_t num_microbatches = 1;
    std::optional<Fp8Recipe> fp8 = {};  ///< of products in layers
    std::string prefix;                 ///< of buffer names
  };

  StageJobs(TaskWriter& writer, const ModelSpec& model, const ParameterLayout& layout,
            UnitBuffers& units, const Mesh& mesh, int rank, const ParallelOptions& parallel,
            const Options& options);

  /// Values of kind input, output and cache of all stages of this rank, by name.
  std::map<std::string, Value> io_values() const;
  /// Must be called for each of these values before the first job.
  void bind(const std::string& value, const IoBinding& binding) { bindings_.io[value] = binding; }

  void add(const Job& job);

  bool has_embedding() const;
  bool has_head() const;

 private:
  struct VirtualStage {
    int stage = 0;  // index of the global stage
    StageGraph graph;
    std::unique_ptr<StageExpander> expander;
  };
  /// The stage at the other end of a transfer: a stage of this rank (`local`), or the place of a
  /// stage on another rank.
  struct Neighbour {
    VirtualStage* local = nullptr;
    StagePlace place;
  };

  Neighbour neighbour(int stage);
  void add_tallies();
  void take_in(VirtualStage& at, const Job& job, bool forward);
  void pass_on(VirtualStage& at, const Job& job, bool forward);
  void take_back_arrived(const Job& at);
  StreamId send_stream(bool forward, int64_t peer);
  Label comm_label(const Job& job);

  TaskWriter& writer_;
  ScheduleOptions schedule_;
  int pipeline_rank_;
  Options options_;
  StageExpander::Bindings bindings_;
  std::optional<Fp8Parts> fp8_parts_;
  std::vector<VirtualStage> stages_;  // indexed by virtual stage
  std::optional<SentMessages> sent_;  // only for steps with a backward and several pipeline ranks
  std::map<std::pair<bool, int64_t>, StreamId> send_streams_;  // by direction (true: forward) and
                                                               // peer
};

}  // namespace braid
