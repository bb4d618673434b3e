#include "runtime/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "comm/process_group.h"
#include "config/load.h"
#include "config/reference.h"
#include "config/validate.h"
#include "data/batch_loader.h"
#include "plan/describe_layout.h"
#include "plan/parallel_setup.h"
#include "plan/rank_programs.h"
#include "plan/run_plan.h"
#include "runtime/agreement.h"
#include "runtime/choose_overlap.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/learning_rate.h"
#include "runtime/memory_check.h"
#include "runtime/run_folder.h"
#include "runtime/run_lock.h"
#include "runtime/run_log.h"
#include "runtime/setup_clock.h"
#include "runtime/step_loop.h"
#include "runtime/training_data.h"
#include "runtime/training_report.h"
#include "state/checkpointing.h"
#include "state/initial_weights.h"
#include "trace/breakdown.h"
#include "trace/explain_exposed.h"

namespace braid {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

using Clock = std::chrono::steady_clock;

/// Of a step in flight.
struct BegunStep {
  double learning_rate = 0;
  Clock::time_point begin = {};
};

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// One run of `braid train`, from planning to the report.
class TrainingRun {
 public:
  TrainingRun(RunConfig config, const TrainerOptions& options, ProcessGroup& processes)
      : processes_(processes),
        config_(prepare_run(std::move(config), processes)),
        options_(processes.leads() ? options : silent(options)),
        locks_(lock_run_folders(config_, processes)),
        data_(opened_data()),
        device_(chosen_device()),
        engine_(planned(), engine_options()) {
    setup_.end("kernels");
    start_state();
    setup_.end("weights");
    print(setup_.line());
    for (const std::string& note : engine_.notes()) {
      print("note     " + note);
    }
    if (!leads()) {
      return;
    }
    // Not before: a run that is refused must not describe the one that is in the folder.
    write_file_atomically(config_.logging.run_folder + "/config.toml", to_toml(config_));
    report_.emplace(TrainingReport::Source{.config = config_,
                                           .plan = engine_.plan(),
                                           .first_step = first_step_,
                                           .unigram_entropy = data_.held_out_entropy()});
    if (first_step_ == 1) {
      report_->save({});
    }
  }

  TrainingSummary run() {
    if (leads()) {
      start_log();
    }
    if (data_.held_out() != nullptr && first_step_ == 1) {
      evaluate(0);
    }
    BatchLoader loader(data_.training(), {.shape = batch_shape(),
                                          .consumed_samples = consumed_samples(first_step_ - 1)});
    const int64_t step =
        run_steps({.first_step = first_step_,
                   .last_step = std::min(config_.train.steps,
                                         options_.stop_after_step.value_or(config_.train.steps)),
                   .max_in_flight = engine_.max_steps_in_flight(),
                   .begin = [&](int64_t next) { begin_step(loader, next); },
                   .end = [this](int64_t oldest) { end_step(oldest); },
                   .is_boundary = [this](int64_t of) { return is_boundary(of); },
                   .should_stop = [this](int64_t) { return should_stop(); },
                   .at_boundary = [this](int64_t of, bool stops) { at_boundary(of, stops); }});
    summary_.last_step = step;
    summary_.stopped_early = step < config_.train.steps;
    summary_.tokens_per_s = median(tokens_per_s_);
    summary_.unigram_entropy = data_.held_out_entropy();
    summary_.run_folder = config_.logging.run_folder;
    if (leads()) {
      end_log();
    }
    return summary_;
  }

 private:
  bool leads() const { return processes_.leads(); }

  static TrainerOptions silent(TrainerOptions options) {
    options.print = [](std::string_view) {};
    options.terminal = false;
    return options;
  }

  void start_log() {
    log_ = std::make_unique<RunLog>(log_options());
    const std::vector<StepRecord>& steps = log_->metrics().steps;
    if (!steps.empty()) {  // both count from the start of the run
      skipped_steps_ = steps.back().skipped_steps;
      nan_steps_ = steps.back().nan_steps;
    }
  }

  void end_log() {
    log_->finish();
    const std::vector<EvalRecord>& evaluations = log_->metrics().evaluations;
    if (!evaluations.empty()) {
      summary_.first_eval_loss = evaluations.front().loss;
      summary_.last_eval_loss = evaluations.back().loss;
    }
    write_reports();
    log_.reset();
  }

  /// The first process makes what is missing in the run folder, then the others find it there.
  TrainingData opened_data() {
    agree_on_configuration(processes_, config_);
    if (!leads()) {
      processes_.barrier("the data");
    }
    TrainingData data(config_, config_.logging.run_folder + "/data",
                      [this](const std::string& line) { print(line); });
    if (leads()) {
      processes_.barrier("the data");
    }
    return data;
  }

  void print(const std::string& line) {
    if (log_ != nullptr) {
      log_->message(line);
    } else {
      options_.print(line + "\n");
    }
  }

  EngineOptions engine_options() const {
    EngineOptions options{
        .threads_per_rank = threads_per_rank(config_.runtime.threads, config_.parallel.ranks),
        .device = device_,
        .processes = &processes_,
        .cache_folder = user_cache_folder(),
        .timeout_ns = config_.runtime.timeout_s * kNsPerSecond,
        .links = link_options(config_.links),
        .repeatable = config_.runtime.repeatable,
        .nccl_windows = config_.runtime.nccl_windows,
        .sync_each_task = read_debug_options().sync_tasks,
        // A step that is run again must not have another one behind it, which changes the weights.
        .steps_in_flight = config_.runtime.detect_nan == "tensors"
                               ? 1
                               : static_cast<int>(config_.runtime.steps_in_flight)};
    if (options_.adjust_engine) {
      options_.adjust_engine(options);
    }
    return options;
  }

  Device chosen_device() {
    setup_.end("data");
    Device device =
        choose_device(config_, find_cuda_gpus(),
                      processes_.size() > 1 ? std::optional(options_.local_process) : std::nullopt);
    agree_on_device(processes_, device);
    setup_.end("device");
    return device;
  }

  /// Plans, and says what will happen before anything is allocated.
  RunPlan planned() {
    if (leads()) {
      config_ = choose_overlap(config_, data_.tokenizer().vocabulary_size(),
                               {.print = options_.print, .progress_bar = shows_progress()});
    }
    const std::string chosen = processes_.broadcast("overlap", to_toml(config_));
    if (!leads()) {
      config_ = parse_config(chosen, "the configuration of rank 0");
    }
    const int64_t vocabulary = data_.tokenizer().vocabulary_size();
    RunPlan plan = processes_.size() > 1 ? plan_for_rank(config_, vocabulary, processes_.index())
                                         : plan_run(config_, vocabulary);
    if (processes_.size() > 1) {
      agree_on_programs(processes_, config_, vocabulary, plan);
    }
    processes_.barrier("plan");  // rank 0 checks more than others, who would miss it later
    options_.print(to_toml(config_));
    options_.print("\n" + describe_device(device_) + describe_run_plan(plan, config_) + "\n");
    check_memory(plan, config_, vocabulary, memory_for_all());
    setup_.end("plan");
    return plan;
  }

  /// What is free before a rank takes any: ranks that share a GPU look at one time.
  RunMemory memory_for_all() {
    const bool shares = device_.gpu && device_.ranks_per_gpu > 1;
    if (shares) {
      free_memory(device_, config_);  // makes the context
      processes_.barrier("contexts on shared GPUs");
    }
    RunMemory memory = free_memory(device_, config_);
    if (shares) {
      processes_.barrier("free memory of shared GPUs");
    }
    return memory;
  }

  BatchShape batch_shape() const {
    return {.num_ranks = config_.parallel.data,
            .num_microbatches = num_microbatches(config_),
            .microbatch = microbatch_sequences(config_)};
  }

  int64_t consumed_samples(int64_t steps) const { return steps * config_.train.global_batch; }
  int64_t tokens_per_step() const { return config_.train.global_batch * config_.train.sequence; }

  /// As the first process finds it, since all must go on from one.
  std::optional<std::string> found_checkpoint() {
    const std::string path =
        processes_.broadcast("the checkpoint to resume",
                             leads() ? checkpoint_to_resume(config_.checkpoint).value_or("") : "");
    return path.empty() ? std::nullopt : std::optional(path);
  }

  void start_state() {
    const RunPlan& plan = engine_.plan();
    const std::optional<std::string> path = found_checkpoint();
    if (!path) {
      engine_.write_state(
          InitialWeights(plan.layout, plan.model, static_cast<uint64_t>(config_.train.seed)));
      return;
    }
    const LoadedCheckpoint checkpoint(*path);
    const CheckpointState& state = checkpoint.state();
    if (state.consumed_samples != consumed_samples(state.step)) {
      throw_config_error(
          "train.global_batch = {}: the checkpoint {} took {} samples in {} steps; set {}, or "
          "checkpoint.resume = "
          "\"none\"",
          config_.train.global_batch, *path, state.consumed_samples, state.step,
          state.consumed_samples / std::max<int64_t>(1, state.step));
    }
    engine_.write_state(CheckpointedState(checkpoint, plan.layout, plan.model));
    first_step_ = state.step + 1;
    summary_.checkpoint = *path;
    print(fmt::format("resume   {} after step {}", *path, state.step));
  }

  bool shows_progress() const {
    const std::string& progress = config_.logging.progress;
    return progress == "on" || (progress == "auto" && options_.terminal);
  }

  RunLogOptions log_options() const {
    return {.folder = config_.logging.run_folder,
            .tensorboard = config_.logging.tensorboard,
            .progress_bar = shows_progress(),
            .interval = config_.logging.interval,
            .first_step = first_step_,
            .num_steps = config_.train.steps,
            .global_batch = config_.train.global_batch,
            .print = options_.print};
  }

  bool is_traced(int64_t step) const {
    const std::vector<int64_t>& steps = config_.logging.trace_steps;
    return std::find(steps.begin(), steps.end(), step) != steps.end();
  }

  bool is_evaluated(int64_t step) const {
    return data_.held_out() != nullptr &&
           (step == config_.train.steps || step % config_.eval.interval == 0);
  }

  bool is_saved(int64_t step) const {
    return config_.checkpoint.interval > 0 && step % config_.checkpoint.interval == 0;
  }

  /// What is done at the end of a step finds it as the last one that has begun, and a traced step
  /// runs alone.
  bool is_boundary(int64_t step) const {
    return is_evaluated(step) || is_saved(step) || is_traced(step) || is_traced(step + 1);
  }

  void at_boundary(int64_t step, bool stops) {
    if (is_evaluated(step)) {
      evaluate(step);
    }
    const bool ends = stops || step == config_.train.steps || is_past_stop(step);
    if ((ends && config_.checkpoint.at_end) || is_saved(step)) {
      save(step);
    }
  }

  void begin_step(BatchLoader& loader, int64_t step) {
    if (tracing_ != is_traced(step)) {  // no step is in flight then
      tracing_ = !tracing_;
      engine_.set_tracing(tracing_);
    }
    begun_.push_back(
        {.learning_rate = learning_rate_at(config_.optimizer, config_.train.steps, step),
         .begin = Clock::now()});
    const std::optional<StepBatch> batch = loader.next();
    check(batch.has_value(), "the training data ends before step {}", step);
    engine_.begin_step(*batch, config_.optimizer, begun_.back().learning_rate, step);
  }

  /// A step takes from the end of the one in front of it, or from its own begin if that is later,
  /// to its end, as this thread sees them.
  void end_step(int64_t step) {
    const StepResult result = engine_.finish_step();
    const Clock::time_point now = Clock::now();
    const BegunStep begun = begun_.front();
    begun_.pop_front();
    const double seconds =
        std::chrono::duration<double>(now - std::max(begun.begin, last_end_)).count();
    last_end_ = now;
    if (is_traced(step)) {
      add_timeline(step);
    }
    log_step(step, begun.learning_rate, result, seconds);
  }

  void add_timeline(int64_t step) {
    Timeline timeline = engine_.timeline();  // which all processes make together
    if (!leads()) {
      return;
    }
    report_->add(step, std::move(timeline));
    if (report_->timelines().size() == 1) {
      print("timeline " + describe_step(report_->timelines().front()));
    }
    report_->save(
        log_->metrics());  // now already: what a run that is killed leaves for `braid report`
  }

  void log_step(int64_t step, double rate, const StepResult& result, double seconds) {
    const bool finite = std::isfinite(result.loss);
    skipped_steps_ += result.skipped ? 1 : 0;
    nan_steps_ += finite ? 0 : 1;
    const double tokens_per_s = static_cast<double>(tokens_per_step()) / seconds;
    const double flops =
        train_flops_per_token(engine_.plan().model, config_.train.sequence) * tokens_per_s;
    tokens_per_s_.push_back(tokens_per_s);
    const StepRecord record{
        .step = step,
        .loss = result.loss,
        .learning_rate = rate,
        .grad_norm = result.grad_norm,
        .step_ms = seconds * 1e3,
        .tokens_per_s = tokens_per_s,
        .tflops_per_s_per_rank = flops * 1e-12 / static_cast<double>(config_.parallel.ranks),
        .consumed_samples = consumed_samples(step),
        .consumed_tokens = step * tokens_per_step(),
        .skipped_steps = skipped_steps_,
        .nan_steps = nan_steps_};
    if (leads()) {
      log_->step(record);
    }
    if (config_.runtime.detect_nan != "off" && (!finite || result.skipped)) {
      throw_device_error(
          "step {}: loss {} with gradient norm {}; stopped because runtime.detect_nan = \"{}\"{}",
          step, result.loss, result.grad_norm, config_.runtime.detect_nan,
          config_.runtime.detect_nan == "tensors" ? first_bad_tensor() : "");
    }
  }

  std::string first_bad_tensor() {
    try {
      engine_.check_last_step();
    } catch (const DeviceError& error) {
      return fmt::format("; run again: {}", error.what());
    }
    return "; run again, it writes neither NaN nor infinity (its update has changed the weights)";
  }

  bool is_past_stop(int64_t step) const {
    return options_.stop_after_step && step >= *options_.stop_after_step;
  }

  bool should_stop() const {
    const bool asked = options_.stop_requested && options_.stop_requested();
    if (processes_.size() == 1) {
      return asked;
    }
    return std::ranges::count(processes_.all_gather("a stop", asked ? "1" : "0"),
                              std::string("1")) > 0;
  }

  void evaluate(int64_t step) {
    BatchLoader loader(*data_.held_out(), {.shape = batch_shape()});
    double sum = 0;
    for (int64_t i = 0; i < config_.eval.batches; ++i) {
      sum += engine_.evaluate(*loader.next());
    }
    if (leads()) {
      log_->evaluation({.step = step, .loss = sum / static_cast<double>(config_.eval.batches)});
    }
  }

  void save(int64_t step) {
    const Clock::time_point begin = Clock::now();
    const RunPlan& plan = engine_.plan();
    const DeviceShards state = engine_.state_shards();
    summary_.checkpoint = save_model_state(
        config_.checkpoint.folder,
        {.step = step,
         .consumed_samples = consumed_samples(step),
         .consumed_tokens = step * tokens_per_step(),
         .seed = config_.train.seed,
         .model = describe_model(plan.model),
         .config = to_toml(config_)},
        plan.layout, plan.model, state.shards(), config_.checkpoint.keep,
        {.leads = leads(), .all_gather = [this](std::string_view name, std::string bytes) {
           return processes_.all_gather(name, std::move(bytes));
         }});
    print(fmt::format("saved    {} in {:.1f} s", summary_.checkpoint,
                      std::chrono::duration<double>(Clock::now() - begin).count()));
  }

  void write_reports() {
    summary_.report = report_->write(log_->metrics());
    if (!report_->timelines().empty()) {
      const Timeline& last = report_->timelines().back();
      summary_.traced_step = describe_times(last);
      for (const ExplainedCommunication& one : explain_exposed(last)) {
        summary_.communication.push_back(describe_exposed(one));
      }
    }
  }

  SetupClock setup_;  // first: it counts from here
  ProcessGroup& processes_;
  RunConfig config_;
  const TrainerOptions options_;
  std::vector<RunLock> locks_;
  std::unique_ptr<RunLog> log_;  // of the first process, while `run` runs; before data_, whose
                                 // construction prints
  TrainingData data_;
  Device device_;
  Engine engine_;
  int64_t first_step_ = 1;
  int64_t skipped_steps_ = 0;
  int64_t nan_steps_ = 0;
  std::vector<double> tokens_per_s_;
  std::optional<TrainingReport> report_;  // of the first process
  bool tracing_ = false;
  std::deque<BegunStep> begun_;      // steps in flight, in their order
  Clock::time_point last_end_ = {};  // of a step
  TrainingSummary summary_;
};

}  // namespace

TrainingSummary train(const RunConfig& config, const TrainerOptions& options) {
  const std::unique_ptr<ProcessGroup> lone =
      options.processes == nullptr ? make_lone_process() : nullptr;
  ProcessGroup& processes = lone != nullptr ? *lone : *options.processes;
  try {
    TrainingSummary summary = TrainingRun(config, options, processes).run();
    processes.finish();
    return summary;
  } catch (const AbortedError& error) {
    processes.abort(error.what());
    throw;
  } catch (const std::exception& error) {
    abort_with_rank(processes, error.what());
    throw;
  }
}

}  // namespace braid
