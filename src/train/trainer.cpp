#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/build_id.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checkpoint_folder.h"
#include "comm/process_group.h"
#include "config/choices.h"
#include "config/reference.h"
#include "config/validate.h"
#include "data/batch_loader.h"
#include "launch/agreement.h"
#include "launch/file_watchdog.h"
#include "model/model_spec.h"
#include "plan/more_room.h"
#include "plan/run_plan.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "state/recorded_config.h"
#include "trace/breakdown.h"
#include "trace/explain_exposed.h"
#include "train/checkpoint_writer.h"
#include "train/data_count.h"
#include "train/fault_watch.h"
#include "train/learning_rate.h"
#include "train/reference.h"
#include "train/run_folder.h"
#include "train/run_identity.h"
#include "train/run_log.h"
#include "train/setup_clock.h"
#include "train/short_start.h"
#include "train/start_state.h"
#include "train/step_calendar.h"
#include "train/step_loop.h"
#include "train/step_meter.h"
#include "train/step_wishes.h"
#include "train/tally_records.h"
#include "train/training_data.h"
#include "train/training_report.h"
#include "train/training_setup.h"

namespace braid {
namespace {

/// For readers that have no tokenizer.
RunConfig with_vocabulary(const RunSpec& run) {
  RunConfig config = run.config;
  config.model.vocabulary = run.model.vocabulary;
  return config;
}

/// A checkpoint of adapters has no embedding that tells the size of the vocabulary.
RunConfig checkpointed_config(const RunSpec& run) {
  return run.model.lora.is_on() ? with_vocabulary(run) : run.config;
}

EvalRecord mean_evaluation(int64_t step, std::span<const EvaluationResult> results) {
  const auto count = static_cast<double>(results.size());
  EvalRecord record{.step = step};
  PreferenceRecord sums;
  for (const EvaluationResult& result : results) {
    record.loss += result.loss;
    sums = sums + result.preference.value_or(PreferenceRecord{});
  }
  record.loss /= count;
  if (results.front().preference) {
    record.preference = sums / count;
  }
  return record;
}

/// One run of `braid train`, from planning to the report.
class TrainingRun {
 public:
  TrainingRun(RunConfig config, const TrainerOptions& options, ProcessGroup& processes)
      : processes_(processes),
        shortened_schedule_(shortened_schedule(config)),
        config_(prepare_run(std::move(config), processes)),
        options_(processes.leads() ? options : silent(options)),
        locks_(config_, processes),
        tokenizer_(tokenizer_of_run(config_, processes)),
        device_(chosen_device()),
        plan_(planned()),
        start_(find_start(run_.config, processes_)),
        data_(opened_data()),
        last_finite_step_(start_.count.step),
        engine_(*std::exchange(plan_, std::nullopt), engine_options()),
        calendar_(run_.config, options_.stop_after_step),
        meter_(meter_options()),
        watch_(run_.config.runtime, engine_, processes_,
               [this](const std::string& line) { print(line); }),
        writer_(engine_, processes_) {
    setup_.end("kernels");
    write_start_state(engine_, start_);
    setup_.end("weights");
    if (!start_.checkpoint.empty()) {
      print(fmt::format("resume   {} after step {}", start_.checkpoint, start_.count.step));
    }
    if (const std::string note = averages_note(start_, run_.config.optimizer.ema); !note.empty()) {
      print("note     " + note);
    }
    set_references();
    print(is_short() ? short_start(engine_.plan(), device_, setup_.seconds()) : setup_.line());
    for (const std::string& line : shortened_schedule_) {
      print("note     " + line);
    }
    for (const std::string& note : engine_.notes()) {
      print("note     " + note);
    }
    if (!leads()) {
      return;
    }
    locks_.lock_checkpoints();
    const std::string saved_config = run_.config.logging.run_folder + "/config.toml";
    if (start_.checkpoint.empty() && std::filesystem::exists(saved_config)) {
      print(
          fmt::format("note     {} has an earlier run, which this one does not resume but replace",
                      run_.config.logging.run_folder));
    }
    // Written only now: a rejected run must not overwrite the description of the run in the folder.
    write_file_atomically(saved_config, to_toml(with_vocabulary(run_)));
    write_file_atomically(run_.config.logging.run_folder + "/" + kPlanFile,
                          description_ + setup_.line() + "\n");
    report_.emplace(TrainingReport::Source{.plan = engine_.plan(),
                                           .first_step = start_.first_step(),
                                           .unigram_entropy = data_.held_out_entropy()});
    if (start_.first_step() == 1) {
      report_->save({});
    }
  }

  TrainingSummary run() {
    set_point(start_);
    continue_from_point();
    const int64_t step = run_steps(
        {.first_step = start_.first_step(),
         .last_step = calendar_.last_step(),
         .max_in_flight = engine_.max_steps_in_flight(),
         .begin = [this](int64_t next) { begin_step(next); },
         .end = [this](int64_t oldest) { end_step(oldest); },
         .is_boundary =
             [this](int64_t of) { return calendar_.is_boundary(of) || watch_.ends_at(of); },
         .should_stop = [this](int64_t ended) { return should_stop(ended); },
         .needs_boundary = [this](int64_t) { return watch_.needs_boundary(); },
         .at_boundary = [this](int64_t of, bool stops) { return at_boundary(of, stops); }});
    report_saved(writer_.finish());
    summary_.last_step = step;
    summary_.stopped_early = step < run_.config.train.steps;
    summary_.tokens_per_s = meter_.median_tokens_per_s();
    summary_.unigram_entropy = data_.held_out_entropy();
    summary_.loss_of_pairs = run_.preference.has_value();
    summary_.run_folder = run_.config.logging.run_folder;
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
    options.on_step = {};
    return options;
  }

  /// The run can go back to this point.
  void set_point(ResumePoint point) {
    point_ = std::move(point);
    watch_.set_start(point_.count.step, point_.checkpoint);
  }

  /// The engine has the state of this point: data and log continue there, too.
  void continue_from_point() {
    loader_.emplace(data_.training(), BatchLoaderOptions{.shape = batch_shape(),
                                                         .consumed_samples = point_.count.samples,
                                                         .eod = document_end()});
    last_finite_step_ = point_.count.step;
    if (leads()) {
      start_log();
    }
    if (data_.held_out() != nullptr && point_.first_step() == 1) {
      evaluate(0);
    }
  }

  void start_log() {
    const std::vector<RerunRecord> reruns =
        log_ == nullptr ? std::vector<RerunRecord>{} : log_->metrics().reruns;
    log_.reset();
    log_ = std::make_unique<RunLog>(log_options());
    const Metrics& kept = log_->metrics();
    for (size_t i = kept.reruns.size(); i < reruns.size(); ++i) {
      log_->rerun(reruns[i]);
    }
    meter_.continue_from(kept.steps.empty() ? StepRecord{} : kept.steps.back());
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

  void print(const std::string& line) {
    if (log_ != nullptr) {
      log_->message(line);
    } else {
      options_.print(line + "\n");
    }
  }

  /// The weights of the start are the reference model. A checkpoint that records no reference is of
  /// no run with one, so that this run starts there.
  void set_references() {
    for (PairFile& file : data_.pair_files()) {
      const std::string fact = fmt::format("identity.{}", file.name);
      ReferenceOptions options{
          .path = fmt::format("{}/data/{}.bin", run_.config.logging.run_folder, file.name),
          .source = file.source,
          .key = fmt::format("{}; {}; {}; sequences of {}", file.identity(),
                             tokenizer_identity(*tokenizer_), describe_model(run_.model),
                             run_.config.train.sequence),
          .shape = batch_shape(),
          .message = [this](const std::string& line) { print(line); }};
      if (start_.recorded && start_.count.step > 0 && start_.recorded->facts.contains(fact)) {
        options.recorded = start_.recorded->facts.at(fact);
      }
      if (shows_progress() && leads()) {
        options.terminal = options_.print;
      }
      auto values = std::make_shared<const std::vector<float>>(
          reference_log_probabilities(engine_, *file.pairs, processes_, options));
      facts_[fact] = reference_checksum(*values);
      file.set_reference(values);
    }
    if (run_.preference) {
      setup_.end("reference");
    }
  }

  TrainingData opened_data() {
    summary_.checkpoint = start_.checkpoint;
    const int64_t last_step = std::max(run_.config.train.steps, start_.count.step);
    TrainingData data =
        open_training_data(run_.config, *tokenizer_, processes_,
                           {.cache_folder = run_.config.logging.run_folder + "/data",
                            .num_samples = count_after(last_step).samples,
                            .message = [this](const std::string& line) { print(line); }});
    facts_ = facts_of(data);
    for (const std::string& line : agree_on_changes(start_, identity_of(run_, facts_),
                                                    options_.allowed_changes, processes_)) {
      print("changed  " + line);
    }
    setup_.end("data");
    return data;
  }

  IdentityFacts facts_of(const TrainingData& data) const {
    IdentityFacts facts = {{std::string(kDataFact), data.identity()},
                           {std::string(kTokenizerFact), tokenizer_identity(*tokenizer_)},
                           {std::string(kSampleOrderFact), data.order()},
                           {std::string(kBuildFact), build_id()},
                           {std::string(kChosenFact), keys_left_to_braid(config_, run_.config)},
                           {std::string(kNumericsFact), fact_of_numerics(device_).value}};
    if (!data.validation_identity().empty()) {
      facts.emplace(kValidationFact, data.validation_identity());
    }
    if (!options_.run_file.empty()) {
      facts.emplace(kRunFileFact, printable(options_.run_file, options_.run_file.size() * 4));
    }
    return facts;
  }

  Device chosen_device() {
    setup_.end("data");
    Device device = device_of_process(config_, options_.local_process, processes_);
    setup_.end("device");
    return device;
  }

  RunPlan planned() {
    PlannedTraining planned = plan_training(
        config_, tokenizer_->vocabulary_size(), device_, processes_,
        {.print = options_.print, .prints_plan = !is_short(), .progress_bar = shows_progress()});
    run_ = planned.plan.run;
    description_ = std::move(planned.description);
    setup_.end("plan");
    return std::move(planned.plan);
  }

  EngineOptions engine_options() const {
    EngineOptions options = training_engine_options(run_, device_, processes_);
    if (options_.adjust_engine) {
      options_.adjust_engine(options);
    }
    return options;
  }

  BatchShape batch_shape() const {
    return {.num_ranks = run_.config.parallel.data,
            .num_microbatches = run_.num_microbatches,
            .microbatch = run_.microbatch_sequences};
  }

  DataCount count_after(int64_t step) const {
    return start_.count.after(step, run_.config.train.global_batch, run_.tokens_per_step());
  }

  StepMeterOptions meter_options() const {
    return {.global_batch = run_.config.train.global_batch,
            .tokens_per_step = run_.tokens_per_step(),
            .start = start_.count,
            .flops_per_token = train_flops_per_token(run_.model, run_.config.train.sequence),
            .num_ranks = run_.config.parallel.ranks};
  }

  bool is_short() const { return choice<LogFormat>(config_.logging.format) == LogFormat::kShort; }

  bool shows_progress() const {
    const auto progress = choice<Switch>(config_.logging.progress);
    return progress == Switch::kOn || (progress == Switch::kAuto && options_.terminal);
  }

  RunLogOptions log_options() const {
    return {.folder = run_.config.logging.run_folder,
            .tensorboard = run_.config.logging.tensorboard,
            .progress_bar = shows_progress(),
            .interval = run_.config.logging.interval,
            .first_step = point_.first_step(),
            .num_steps = run_.config.train.steps,
            .global_batch = run_.config.train.global_batch,
            .format = choice<LogFormat>(config_.logging.format),
            .prometheus = config_.logging.prometheus,
            .print = options_.print};
  }

  int64_t at_boundary(int64_t step, bool stops) {
    const bool saves = calendar_.is_saved(step, stops);
    const bool compares = saves || calendar_.is_checked(step);
    if (const std::optional<RerunCause> cause = watch_.reason_to_go_back(step, compares)) {
      return go_back(*cause, step);
    }
    if (watch_.ends_at(step)) {
      record_rerun(step, watch_.end());
    }
    if (calendar_.is_evaluated(step)) {
      evaluate(step);
    }
    if (saves) {
      save(step, stops || step >= calendar_.last_step());
    }
    return step;
  }

  /// As the next start of the run would continue, in this process. Returns the step of the point.
  int64_t go_back(const RerunCause& cause, int64_t step) {
    report_saved(writer_.finish());
    record_rerun(step, watch_.begin(cause, step));
    if (leads()) {
      log_->finish();
    }
    write_start_state(engine_, point_);
    processes_.barrier("the state to go back to");  // tasks of the next step wait for less time
    continue_from_point();
    return point_.count.step;
  }

  void record_rerun(int64_t step, std::string message) {
    if (leads()) {
      print("rerun    " + message);
      log_->rerun({.step = step, .from_step = point_.count.step, .message = std::move(message)});
    }
  }

  void begin_step(int64_t step) {
    if (tracing_ != calendar_.is_traced(step)) {  // no step is in flight then
      tracing_ = !tracing_;
      engine_.set_tracing(tracing_);
    }
    const double rate = learning_rate_at(run_.learning_rate, step);
    meter_.begin(step, rate);
    const std::optional<StepBatch> batch = loader_->next();
    check(batch.has_value(), "the training data ends before step {}", step);
    engine_.begin_step(*batch, run_.config.optimizer, rate, step);
  }

  /// The token that ends documents, if they are separate.
  std::optional<int32_t> document_end() const {
    return run_.documents.documents ? tokenizer_->eod_id() : std::nullopt;
  }

  void end_step(int64_t step) {
    const StepResult result = engine_.finish_step();
    const StepRecord record = meter_.end(result);
    const TallyRecords tallies = tally_records(engine_, processes_, calendar_, step);
    if (calendar_.is_traced(step)) {
      add_timeline(step);
    }
    if (leads()) {
      log_->fp8(tallies.fp8);
      log_->experts(tallies.experts);  // before the line of the step, which mentions them
      log_->step(record);
      if (result.reruns > 0) {
        const RunPlan& plan = engine_.plan();
        print(fmt::format(
            "rerun    step {}: more rows of experts came to a rank than it had room "
            "for; it ran again with {}, which needs {} per rank",
            step, describe_room(plan.run), format_bytes(plan.ranks.front().memory.peak_bytes())));
      }
    }
    if (options_.on_step) {
      options_.on_step(record);
    }
    watch_.add(step, result);
    check_finite(step, result);
    last_finite_step_ = std::isfinite(result.loss) ? step : last_finite_step_;
  }

  void add_timeline(int64_t step) {
    Timeline timeline = engine_.timeline();  // which all processes must call
    if (!leads()) {
      return;
    }
    report_->add(step, std::move(timeline));
    if (report_->timelines().size() == 1 && !is_short()) {
      print("timeline " + describe_step(report_->timelines().front()));
    }
    report_->save(
        log_->metrics());  // written early, so that `braid report` also works for a killed run
  }

  void check_finite(int64_t step, const StepResult& result) {
    const bool is_finite = std::isfinite(result.loss) && !result.skipped;
    if (run_.detect_nan != NanCheck::kOff && !is_finite && !watch_.may_go_back(step)) {
      if (run_.config.runtime.check_replicas > 0) {
        end_steps_in_flight(engine_);
        watch_.check_copies(step);
      }
      throw_device_error(
          "step {}: loss {} with gradient norm {}; stopped because runtime.detect_nan = "
          "\"{}\"{}{}{}",
          step, result.loss, result.grad_norm, run_.config.runtime.detect_nan, room_hint(),
          run_.detect_nan == NanCheck::kTensors ? first_bad_tensor() : "", watch_.progress(step));
    }
  }

  /// With room for a part of the rows that can come, the first suspect of a loss that is NaN.
  std::string room_hint() const {
    const bool stops = !run_.parallel.drops_rows && !run_.reruns_overflow;
    return !may_overflow(run_) || !stops
               ? ""
               : fmt::format(
                     "; a rank has room for moe.capacity = {} of the rows of experts that "
                     "it gets with equal loads, and makes the loss NaN if more come: raise "
                     "it, set it to 0 (room for all), or moe.on_overflow = \"rerun\"",
                     run_.parallel.expert_capacity);
  }

  std::string first_bad_tensor() {
    try {
      engine_.check_last_step();
    } catch (const DeviceError& error) {
      return fmt::format("; run again: {}", error.what());
    }
    return "; repeated, the step writes neither NaN nor infinity (its update has changed the "
           "weights)";
  }

  /// Called after the end of that step. All processes decide the same, also about a spike, which a
  /// failing device may see alone.
  bool should_stop(int64_t step) {
    report_saved(writer_.finished());
    const bool asked = options_.stop_requested && options_.stop_requested();
    const std::string wishes =
        greatest_wishes(engine_, processes_, step, fmt::format("{:d}{}", asked, watch_.take_own()));
    watch_.agree(step, wishes.at(1));
    return wishes.at(0) == '1';
  }

  void evaluate(int64_t step) {
    BatchLoader loader(*data_.held_out(), {.shape = batch_shape(), .eod = document_end()});
    std::vector<EvaluationResult> results;
    for (int64_t i = 0; i < run_.config.eval.batches; ++i) {
      results.push_back(engine_.evaluate(*loader.next()));
    }
    if (leads()) {
      log_->evaluation(mean_evaluation(step, results));
    }
  }

  /// `waits`: no step follows that could hide the save.
  void save(int64_t step, bool waits) {
    report_saved(writer_.finish());
    const RunPlan& plan = engine_.plan();
    const DataCount count = count_after(step);
    writer_.save(
        {.progress = {.step = step,
                      .consumed_samples = count.samples,
                      .consumed_tokens = count.tokens,
                      .seed = run_.config.train.seed,
                      .model = describe_model(plan.run.model),
                      .config = to_toml(checkpointed_config(run_)),
                      .extra = with_current_folder({facts_.begin(), facts_.end()})},
         .options = {.keep = run_.config.checkpoint.keep, .last_finite_step = last_finite_step_},
         .before =
             [log = log_.get()] {
               if (log != nullptr) {
                 log->sync();
               }
             },
         .waits = waits,
         .adjust = options_.adjust_save});
    // It may still be written. Whoever goes back waits for it.
    set_point(
        {.checkpoint = fmt::format("{}/{}", run_.config.checkpoint.folder, checkpoint_name(step)),
         .count = count});
    report_saved(writer_.finished());
  }

  void report_saved(const std::optional<CheckpointWriter::Saved>& saved) {
    if (!saved) {
      return;
    }
    summary_.checkpoint = saved->path;
    print(fmt::format("saved    {} in {:.1f} s{}", saved->path, saved->seconds,
                      saved->copy_seconds
                          ? fmt::format(", of which steps waited {:.2f} s", *saved->copy_seconds)
                          : ""));
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

  SetupClock setup_;         // first member: measures from here
  TrainingSummary summary_;  // before `data_`, whose opening names the checkpoint
  ProcessGroup& processes_;
  const std::vector<std::string> shortened_schedule_;  // lines
  const RunConfig config_;  // as requested: `run_` contains what was chosen
  const TrainerOptions options_;
  RunLocks locks_;
  std::unique_ptr<RunLog> log_;  // in the first process, while `run` runs; before data_, whose
                                 // construction prints
  std::unique_ptr<Tokenizer> tokenizer_;
  Device device_;
  RunSpec run_;  // valid after planning, like the next
  std::string description_;
  std::optional<RunPlan> plan_;  // until it moves to the engine
  ResumePoint start_;
  IdentityFacts facts_;  // of this run's RunIdentity
  TrainingData data_;
  int64_t last_finite_step_ = 0;
  Engine engine_;
  StepCalendar calendar_;
  StepMeter meter_;
  std::optional<TrainingReport> report_;  // in the first process
  bool tracing_ = false;
  FaultWatch watch_;
  ResumePoint point_;  // where the run can go back to: its last checkpoint or its start
  std::optional<BatchLoader> loader_;
  CheckpointWriter writer_;  // last: waits for a save that uses the log and the engine
};

}  // namespace

TrainingSummary train(const RunConfig& config, const TrainerOptions& options) {
  const std::unique_ptr<ProcessGroup> lone =
      options.processes == nullptr ? make_lone_process() : nullptr;
  ProcessGroup& processes = lone != nullptr ? *lone : *options.processes;
  check_allowed_changes(options.allowed_changes);
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  const FileWatchdog watchdog(processes, config.runtime.timeout_s * kNsPerSecond);
  TrainingSummary summary;
  finish_or_abort(processes, [&] { summary = TrainingRun(config, options, processes).run(); });
  return summary;
}

}  // namespace braid
