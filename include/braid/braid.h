#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

/// braid as a library: what the program `braid` does with a run file. docs/library.md says how to
/// build against it.
///
///   const braid::api::Run run = braid::api::Run::load("run.toml", {"train.steps=100"});
///   const braid::api::Simulation step = run.simulate({.machine = "h200x8"});
///   run.train({.on_step = [](const braid::api::TrainStep& step) { return step.loss > 2.0; }});
///
/// Needs C++17 (the braces above need C++20). Nothing here prints or ends the process. Functions
/// throw Error, and let exceptions of callbacks pass.
namespace braid::api {

enum class ErrorKind {
  /// The caller can fix it: the run file, an override, an option. The message names value, limit
  /// and key.
  kConfig,
  /// A file cannot be read, written or trusted. The message names its path.
  kData,
  /// A device, a link or another process of the run failed. The message names rank and task. The
  /// newest checkpoint is intact. A task may still be stuck: end the process.
  kDevice,
  /// A bug in braid.
  kInternal,
};

/// `what()` is one line for the user.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

struct PlanOptions {
  /// Refuse a run that needs more on one device; 0: do not compare.
  int64_t device_memory_bytes = 0;
  bool with_programs = false;  ///< fill RankPlan::program
};

/// What became of one pass over the training program of a rank.
struct PassRecord {
  std::string name;
  std::string summary;  ///< what it did, or why it was skipped
  bool skipped = false;
  int64_t duration_ns = 0;
};

/// Device memory of one class of buffers ("weights", "activations").
struct MemoryClass {
  std::string name;
  int64_t persistent_bytes = 0;
  int64_t step_bytes = 0;  ///< at the peak of a step
};

/// What is decided for a rank before anything runs.
struct RankPlan {
  int rank = 0;
  int64_t peak_bytes = 0;           ///< on the device: exactly what its buffers get
  int64_t persistent_bytes = 0;     ///< of these, for weights and optimizer state
  int64_t step_bytes = 0;           ///< of these, for the activations and gradients of a step
  int64_t host_bytes = 0;           ///< offloaded to the host
  std::vector<MemoryClass> memory;  ///< without empty classes; the sum is `peak_bytes`
  int64_t num_tasks = 0;
  std::vector<PassRecord> passes;
  /// The training program after all passes as text (docs/program.md), if asked for.
  std::string program;
};

struct Plan {
  int64_t num_ranks = 0;  ///< of the run
  /// The first one of each pipeline stage; the others of the stage have as much to do.
  std::vector<RankPlan> ranks;
  std::string description;  ///< model, layout, passes and memory, as `braid plan` prints them
};

struct SimulateOptions {
  /// A cluster ("h200x8", "h100x1024"), or the path of a profile of `braid calibrate` (with a '/'
  /// or ending in ".json").
  std::string machine;
  /// Instead of parallel.ranks: the data dimension and the global batch grow along. 0: as the run
  /// file says. The machine must have as many devices.
  int64_t num_ranks = 0;
  bool contention = true;  ///< tasks that run at the same time slow each other down
};

/// Communication of one kind ("data", "tensor", "pipeline", ...) in a simulated step: mean over all
/// ranks.
struct CommunicationTime {
  std::string kind;
  double total_ns = 0;
  double exposed_ns = 0;  ///< not hidden under compute; kinds may overlap each other
};

/// A simulated training step; docs/simulator.md explains each figure.
struct Simulation {
  int64_t step_ns = 0;
  double tokens_per_s = 0;  ///< over all ranks
  double mfu = 0;           ///< model FLOPs as a part of the devices' peak, 0 to 1
  double compute_ns = 0;    ///< mean over all ranks, as are the times below
  double exposed_ns = 0;    ///< communication that nothing hides, all kinds
  double idle_ns = 0;       ///< the pipeline's bubble and other waiting
  std::vector<CommunicationTime> communication;  ///< kinds that occur
  std::string description;                       ///< as `braid simulate` prints it
  std::string json;                              ///< as `braid simulate --json` prints it
};

struct VerifyOptions {
  int64_t steps = 3;  ///< optimizer steps that are compared
};

/// The layout of a run compared with one rank, on a shrunken model. Differences are relative.
struct Verification {
  bool equal = false;  ///< all differences are within the tolerances
  std::string worst_gradient;
  double gradient_difference = 0;  ///< of `worst_gradient`, in f64
  double gradient_tolerance = 0;
  double loss_difference = 0;  ///< largest of a step, in the dtype of the run
  double loss_tolerance = 0;
  std::vector<double> losses;           ///< of the layout, by step, nats per token
  std::vector<double> one_rank_losses;  ///< of one rank
};

/// One finished training step.
struct TrainStep {
  int64_t step = 0;  ///< from 1
  double loss = 0;   ///< mean over the global batch, nats per token
  double grad_norm = 0;
  double learning_rate = 0;
  double tokens_per_s = 0;  ///< over all ranks
  double step_ms = 0;
  double tflops_per_s_per_rank = 0;  ///< model FLOPs
  int64_t consumed_samples = 0;      ///< since the start of the run
  int64_t consumed_tokens = 0;
};

/// A held-out loss, measured with the weights after `step` (0: before the first step).
struct Evaluation {
  int64_t step = 0;
  double loss = 0;  ///< nats per token
};

/// What a run has measured so far, in order. Numbers that were not finite are NaN.
struct Metrics {
  std::vector<TrainStep> steps;
  std::vector<Evaluation> evaluations;
  std::string damage;  ///< a line about records that could not be read; empty: all could
};

/// Reads metrics.jsonl of a run folder, also while the run goes on. Throws kData where there is
/// none, or it cannot be read.
Metrics read_metrics(const std::string& run_folder);

struct TrainOptions {
  /// Called after each step, on the thread that trains; false: save a checkpoint and end. Steps
  /// that are in flight already (one, on GPUs) still follow, and steps that run again
  /// (runtime.rerun_steps) come again. Of several processes only the first
  /// one calls it.
  std::function<bool(const TrainStep&)> on_step = {};
  /// Called with every piece of text that `braid train` prints, ends of lines included. Of several
  /// processes only the first one calls it.
  std::function<void(const std::string&)> on_output = {};
  int64_t stop_after_step = 0;  ///< save and end after this step; 0: after the last one
  /// Keys ("data.train") that may have changed since the checkpoint although that makes the run
  /// another one, as `--allow-change`.
  std::vector<std::string> allowed_changes = {};
};

/// Paths are empty where nothing was written.
struct TrainResult {
  int64_t last_step = 0;
  bool stopped_early = false;
  double first_eval_loss = 0;  ///< held-out, before the first step; 0 without evaluations
  double last_eval_loss = 0;
  double tokens_per_s = 0;  ///< median of the steps
  std::string run_folder;   ///< metrics, report and checkpoints
  std::string report;       ///< report.html
  std::string checkpoint;   ///< the newest
};

/// A run file with its overrides. Does not change; copies are cheap. `plan` and `simulate` may be
/// called by several threads at once; `verify` and `train` start threads of their own.
class Run {
 public:
  /// Reads a run file (docs/configuration.md). `overrides` are like those of `--set`:
  /// "section.key=value". Throws kConfig for what is wrong in it, and kData where a tokenizer must
  /// say the size of the vocabulary and cannot.
  static Run load(const std::string& path, const std::vector<std::string>& overrides = {});

  /// The same from the text of a run file. `name` stands for the file in errors and in the run
  /// folder, which is "runs/<name>" unless logging.run_folder says otherwise.
  static Run parse(const std::string& text, const std::string& name = "run",
                   const std::vector<std::string>& overrides = {});

  /// The run file with all keys and what follows from them, as TOML.
  std::string config() const;

  /// Builds the programs, runs the passes and plans memory. Needs no data and no device. Throws
  /// kConfig for layouts that cannot run, and for what does not fit, with the nearest setting that
  /// does.
  Plan plan(const PlanOptions& options = {}) const;

  /// Runs a step of all ranks in simulated time. Needs no data and no device. Throws kConfig and,
  /// for a profile, kData.
  Simulation simulate(const SimulateOptions& options) const;

  /// Compares losses and every gradient with one rank. Ranks are threads of this process. Throws
  /// kConfig for more ranks than a machine can have as threads.
  Verification verify(const VerifyOptions& options = {}) const;

  /// Trains from scratch or from the newest checkpoint, as `braid train`, and writes the run
  /// folder. A run on several GPUs has a process per rank: start them by torchrun, mpirun or srun,
  /// and let all of them call this alike. Throws kConfig before anything is written, kData for
  /// files, kDevice for a step that failed.
  TrainResult train(const TrainOptions& options = {}) const;

 private:
  struct State;
  explicit Run(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace braid::api
