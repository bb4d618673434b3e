#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/folder_lock.h"
#include "cli/commands.h"
#include "config/load.h"
#include "report/fp8_table.h"
#include "report/metrics_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.toml";
constexpr const char* kMetricsFile = "metrics.jsonl";

/// A row of the table, and when its run last wrote a measurement.
struct RunRow {
  fs::file_time_type when;
  std::vector<std::string> cells;
};

std::string model_of(const ModelConfig& model) {
  return !model.preset.empty() ? model.preset
                               : fmt::format("{} {}x{}", model.family.value_or("llama"),
                                             model.layers.value_or(0), model.width.value_or(0));
}

/// "tp2 dp4": dimensions of more than one rank.
std::string layout_of(const ParallelConfig& parallel) {
  std::string text;
  for (const auto& [name, size] : {std::pair{"tp", parallel.tensor},
                                   {"pp", parallel.pipeline},
                                   {"cp", parallel.context},
                                   {"dp", parallel.data},
                                   {"ep", parallel.expert}}) {
    if (size > 1) {
      text += fmt::format("{}{}{}", text.empty() ? "" : " ", name, size);
    }
  }
  return text.empty() ? "1 rank" : text;
}

std::string state_of(const std::string& folder, int64_t step, int64_t num_steps) {
  return is_folder_locked(folder) ? "running" : step >= num_steps ? "finished" : "stopped";
}

/// Local time, to the minute.
std::string time_text(fs::file_time_type time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(
      std::chrono::time_point_cast<std::chrono::system_clock::duration>(
          std::chrono::file_clock::to_sys(time)));
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:04d}-{:02d}-{:02d} {:02d}:{:02d}", local.tm_year + 1900, local.tm_mon + 1,
                     local.tm_mday, local.tm_hour, local.tm_min);
}

/// The median of the last steps, so that single slow ones do not matter.
double last_tokens_per_s(const std::vector<StepRecord>& steps) {
  constexpr size_t kLast = 20;
  std::vector<double> rates;
  for (size_t i = steps.size() - std::min(steps.size(), kLast); i < steps.size(); ++i) {
    rates.push_back(steps[i].tokens_per_s);
  }
  std::ranges::sort(rates);
  return rates.empty() ? 0 : rates[rates.size() / 2];
}

RunRow row_of(const fs::path& folder, const std::string& name) {
  constexpr int64_t kMaxConfigBytes = 1 << 20;
  const std::string config_path = (folder / kConfigFile).string();
  RunRow row{.when = fs::last_write_time(folder / kConfigFile), .cells = {name}};
  try {
    const RunConfig config =
        parse_config(read_text_file(config_path, kMaxConfigBytes), config_path);
    const Metrics metrics = read_metrics((folder / kMetricsFile).string());
    if (fs::exists(folder / kMetricsFile)) {
      row.when = fs::last_write_time(folder / kMetricsFile);
    }
    const bool has_steps = !metrics.steps.empty();
    const int64_t step = has_steps ? metrics.steps.back().step : 0;
    row.cells.insert(
        row.cells.end(),
        {model_of(config.model), layout_of(config.parallel),
         fmt::format("{}/{}", step, config.train.steps),
         has_steps ? fmt::format("{:.4f}", metrics.steps.back().loss) : "-",
         has_steps ? format_count(static_cast<int64_t>(last_tokens_per_s(metrics.steps))) : "-",
         state_of(folder.string(), step, config.train.steps)});
  } catch (const Error&) {  // of another version, or damaged; `inspect` says more
    row.cells.insert(row.cells.end(), {"-", "-", "-", "-", "-", "unreadable"});
  }
  row.cells.push_back(time_text(row.when));
  return row;
}

/// Run folders in a folder, and itself if it is one; the newest last.
std::vector<RunRow> rows_in(const std::string& folder) {
  if (!fs::is_directory(folder)) {
    throw_data_error("'{}' is not a folder; give the folder that has the run folders", folder);
  }
  std::vector<RunRow> rows;
  const auto add = [&](const fs::path& path, const std::string& name) {
    if (fs::exists(path / kConfigFile)) {
      rows.push_back(row_of(path, name));
    }
  };
  add(folder, folder);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) {
      add(entry.path(), entry.path().filename().string());
    }
  }
  std::ranges::sort(rows, [](const RunRow& a, const RunRow& b) {
    return std::pair(a.when, a.cells.front()) < std::pair(b.when, b.cells.front());
  });
  return rows;
}

void list_runs(const std::string& folder, const Console& console) {
  const std::vector<RunRow> rows = rows_in(folder);
  if (rows.empty()) {
    console.print(fmt::format("no runs in {}\n", folder));
    return;
  }
  ReportTable table{
      .columns = {"run", "model", "layout", "step", "loss", "tokens/s", "state", "last written"},
      .rows = {}};
  for (const RunRow& row : rows) {
    table.rows.push_back(row.cells);
  }
  console.print(describe_table(table));
}

}  // namespace

void add_runs_command(CLI::App& app, const Console& console) {
  const auto folder = std::make_shared<std::string>("runs");
  CLI::App* command = app.add_subcommand("runs", "List runs as a table");
  command->add_option("folder", *folder, "Folder that has the run folders")
      ->type_name("FOLDER")
      ->capture_default_str();
  command->footer(
      "A run is running if a process holds its folder. Loss and tokens/s are those of its last "
      "steps.");
  command->callback([folder, &console] { list_runs(*folder, console); });
}

}  // namespace braid
