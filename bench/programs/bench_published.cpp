// Simulated steps of runs whose step times others have published, beside these times: the rows of
// bench/published/rows.txt, each on its cluster with its software stack (docs/stacks.md). A fixed
// coin decides which rows stacks may be fitted to; the errors of both halves are printed apart.
//   braid_bench_published                     all rows, then errors by half and by stack
//   braid_bench_published --rows TEXT         rows whose name or stack contains TEXT
//   braid_bench_published --stack NAME        with that stack for all rows; a file: for fits
//   braid_bench_published --jobs 2            rows at once
//   braid_bench_published --parts FILE        what fits need: a row's seconds by family of ops,
//                                             tasks
//   braid_bench_published --fit-ranges true   errors of kernels with which ranges reach nine tenths
//                                             of the fitting rows
//   braid_bench_published --check PAGE        fails unless the page has the table as printed

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "plan/simulated_run.h"
#include "plan/step_range.h"
#include "programs/error_summary.h"
#include "programs/published_rows.h"
#include "sim/analytic_model.h"
#include "sim/device_file.h"
#include "sim/predict.h"

namespace braid {
namespace {

struct Options {
  std::string rows;
  std::string stack;
  std::string page;
  std::string parts;
  int jobs = 2;
  bool fit_ranges = false;
};

struct Prediction {
  double seconds = 0;
  StepRange range;
  bool has_fp8 = false;
  double compute = 0;  ///< parts of the step, means of all ranks
  double exposed = 0;
  double idle = 0;
  /// Sums of the tasks of the busiest rank by OpFamily, in seconds: what a fit of a stack needs.
  std::array<double, kNumOpFamilies> family_s{};
  size_t num_tasks = 0;
  std::string fault;
};

const Program& busiest_program(const SimulatedRun& run) {
  const int busiest = run.busiest().rank;
  for (const RankPlan& plan : run.plan().ranks) {
    if (plan.programs.front().rank == busiest) {
      return plan.programs.front();
    }
  }
  return run.plan().ranks.front().programs.front();
}

Prediction predict(const PublishedRow& row, const std::string& stack) {
  try {
    Cluster cluster = parse_cluster(row.cluster);
    cluster.device = with_stack(cluster.device, stack);
    RunConfig config = row.config;
    config.overlap.mode = cluster.device.stack.overlap;
    const auto model = make_analytic_model(cluster);
    const SimulatedRun run(resolve_run(config, 0), *model, {}, PlannedRanks::kOnePerStage);
    const auto step_ns = static_cast<double>(run.result().step_ns);
    const Program& program = busiest_program(run);
    const SerialPrediction sums = predict_serial(program, *model);
    Prediction prediction{.seconds = static_cast<double>(run.step_ns()) * 1e-9,
                          .range = step_range(run, 1),
                          .has_fp8 = run.spec().fp8.has_value(),
                          .compute = run.means().compute_ns / step_ns,
                          .exposed = run.means().all_exposed_ns / step_ns,
                          .idle = run.means().idle_ns() / step_ns,
                          .num_tasks = program.tasks.size(),
                          .fault = {}};
    std::transform(sums.family_ns.begin(), sums.family_ns.end(), prediction.family_s.begin(),
                   [](int64_t ns) { return static_cast<double>(ns) * 1e-9; });
    return prediction;
  } catch (const Error& error) {
    return {.fault = error.what()};
  }
}

double error_of(const PublishedRow& row, const Prediction& prediction) {
  return prediction.seconds / row.seconds - 1;
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

bool is_in_range(const PublishedRow& row, const Prediction& it) {
  return row.seconds >= seconds(it.range.low_ns) && row.seconds <= seconds(it.range.high_ns);
}

std::string table_line(const PublishedRow& row, const Prediction& it) {
  if (!it.fault.empty()) {
    return fmt::format("{}: {}", row.name, it.fault);
  }
  return fmt::format(
      "| {} | {} | {} | {} | {:.3f} | {:.3f} | {:+.1f}% | {:.3f} to {:.3f}{} | {:.0f}, {:.0f}, "
      "{:.0f}% |",
      row.name, row.stack, row.layout, row.is_fitted ? "fitted" : "unfitted", row.seconds,
      it.seconds, 100 * error_of(row, it), seconds(it.range.low_ns), seconds(it.range.high_ns),
      is_in_range(row, it) ? "" : ", missed", 100 * it.compute, 100 * it.exposed, 100 * it.idle);
}

/// How many published steps lie in the ranges of the simulated ones, and how wide these are.
struct Coverage {
  size_t num_rows = 0;
  size_t num_in_range = 0;
  double width = 0;  ///< sum of high / low - 1
};

std::string coverage_line(const std::string& what, const Coverage& it) {
  const auto count = static_cast<double>(it.num_rows);
  return fmt::format("| {} | {} | {} | {:.0f}% | {:.1f}% |", what, it.num_rows, it.num_in_range,
                     100 * static_cast<double>(it.num_in_range) / count, 100 * it.width / count);
}

/// The relative error of this source with which the range just reaches the published step; NaN if
/// the step does not have the source.
double needed_error(const PublishedRow& row, const Prediction& it, std::string_view what) {
  const double middle = it.seconds;
  const bool is_slower = row.seconds > middle;
  double others = 0;
  double own = 0;
  for (const RangeSource& source : it.range.sources) {
    const double reach = std::abs(seconds(is_slower ? source.high_ns : source.low_ns) - middle);
    if (source.what == what) {
      own = reach;
    } else {
      others = std::hypot(others, reach);
    }
  }
  const double distance = std::abs(row.seconds - middle);
  return std::sqrt(std::max(0.0, distance * distance - others * others)) / own;
}

/// A line per stack and source: the error with which the ranges of nine tenths of the fitting rows
/// reach the published step, relative to that in the stack's file. Compute of rows without FP8
/// first (if the stack has any), then FP8 products.
void print_fits(const std::vector<PublishedRow>& rows, const std::vector<Prediction>& predictions) {
  constexpr double kReached = 0.9;
  std::map<std::string, std::vector<double>> needed;
  std::map<std::string, bool> has_bf16;
  for (size_t i = 0; i < rows.size(); ++i) {
    has_bf16[rows[i].stack] |= rows[i].is_fitted && !predictions[i].has_fp8;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].is_fitted) {
      const bool is_fp8 = predictions[i].has_fp8 && has_bf16[rows[i].stack];
      const std::string what = is_fp8 ? "FP8 products" : "kernels";
      needed[rows[i].stack + ": " + what].push_back(needed_error(rows[i], predictions[i], what));
    }
  }
  for (auto& [what, errors] : needed) {
    std::sort(errors.begin(), errors.end());
    const auto at = static_cast<size_t>(std::ceil(kReached * static_cast<double>(errors.size())));
    fmt::print("{}: {:.2f} times that of the file, by {} rows\n", what, errors[at - 1],
               errors.size());
  }
}

std::vector<Prediction> predictions_of(const std::vector<PublishedRow>& rows,
                                       const Options& options) {
  std::vector<Prediction> predictions(rows.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < options.jobs; ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < rows.size(); at = next++) {
        predictions[at] = predict(rows[at], options.stack.empty() ? rows[at].stack : options.stack);
        fmt::print(stderr, "{}\n", table_line(rows[at], predictions[at]));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return predictions;
}

std::vector<std::string> page_lines(const std::vector<PublishedRow>& rows,
                                    const std::vector<Prediction>& predictions) {
  std::vector<std::string> lines{
      "| row | stack | tp-pp-cp-vp | half | published, s | simulated, s | error | range, s | "
      "compute, exposed, idle |",
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"};
  std::map<std::string, Coverage> coverage;
  std::map<std::string, std::vector<double>> halves;
  for (size_t i = 0; i < rows.size(); ++i) {
    lines.push_back(table_line(rows[i], predictions[i]));
    if (predictions[i].fault.empty()) {
      const double error = error_of(rows[i], predictions[i]);
      const std::string half = rows[i].is_fitted ? "fitted" : "unfitted";
      halves["all " + half].push_back(error);
      halves[rows[i].stack + " " + half].push_back(error);
      for (const std::string& what : {"all " + half, rows[i].stack + " " + half}) {
        Coverage& it = coverage[what];
        ++it.num_rows;
        it.num_in_range += is_in_range(rows[i], predictions[i]) ? 1 : 0;
        it.width += predictions[i].range.width();
      }
    }
  }
  lines.insert(lines.end(), {"", "| rows | number | mean | median | worst | mean with sign |",
                             "| --- | --- | --- | --- | --- | --- |"});
  for (const auto& [what, errors] : halves) {
    lines.push_back(error_summary_line(what, errors));
  }
  lines.insert(lines.end(), {"", "| rows | number | in range | part | mean width of ranges |",
                             "| --- | --- | --- | --- | --- |"});
  for (const auto& [what, it] : coverage) {
    lines.push_back(coverage_line(what, it));
  }
  return lines;
}

/// Whether the page has every line; prints those that it lacks.
bool has_lines(const std::string& page, const std::vector<std::string>& lines) {
  const std::string text = read_text_file(page, int64_t{1} << 24);
  bool has_all = true;
  for (const std::string& line : lines) {
    if (text.find(line + "\n") == std::string::npos) {
      fmt::print(stderr, "{} lacks: {}\n", page, line);
      has_all = false;
    }
  }
  return has_all;
}

/// "name half published simulated tasks products attention memory-bound communication", a row a
/// line.
void write_parts(const std::string& path, const std::vector<PublishedRow>& rows,
                 const std::vector<Prediction>& predictions) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Prediction& it = predictions[i];
    const auto part = [&](OpFamily family) { return it.family_s[static_cast<size_t>(family)]; };
    text += fmt::format("{} {} {} {} {} {} {} {} {} {} {}\n", rows[i].name, rows[i].stack,
                        rows[i].is_fitted ? "fitted" : "unfitted", rows[i].cluster, rows[i].seconds,
                        it.seconds, it.num_tasks, part(OpFamily::kGemm), part(OpFamily::kAttention),
                        part(OpFamily::kMemoryBound), part(OpFamily::kCommunication));
  }
  write_file_atomically(path, text);
}

int run(const Options& options) {
  std::vector<PublishedRow> rows = load_published_rows(BRAID_PUBLISHED_FOLDER);
  std::erase_if(rows, [&](const PublishedRow& row) {
    return (row.name + ' ' + row.stack).find(options.rows) == std::string::npos;
  });
  const std::vector<Prediction> predictions = predictions_of(rows, options);
  if (options.fit_ranges) {
    print_fits(rows, predictions);
    return 0;
  }
  if (!options.parts.empty()) {
    write_parts(options.parts, rows, predictions);
  }
  const std::vector<std::string> lines = page_lines(rows, predictions);
  for (const std::string& line : lines) {
    fmt::print("{}\n", line);
  }
  return options.page.empty() || has_lines(options.page, lines) ? 0 : 1;
}

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--rows") {
      options.rows = value;
    } else if (name == "--stack") {
      options.stack = value;
    } else if (name == "--check") {
      options.page = value;
    } else if (name == "--parts") {
      options.parts = value;
    } else if (name == "--fit-ranges") {
      options.fit_ranges = value == "true";
    } else if (name == "--jobs") {
      options.jobs = std::max(1, std::stoi(value));
    } else {
      throw_config_error(
          "unknown option {}; use --rows, --stack, --parts, --fit-ranges, --check or --jobs", name);
    }
  }
  return options;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    return braid::run(braid::options_of(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
