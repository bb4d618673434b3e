#include "report/run_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "report/metrics_file.h"
#include "report/report_data.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 32;

Json parse_file(const std::string& path) {
  return parse_ordered_json(read_text_file(path, kMaxFileBytes), fmt::format("'{}'", path));
}

void check_format(const std::string& path, const Json& json) {
  const Json found = json.is_object() ? json.value("format", Json()) : Json();
  if (!found.is_number_integer()) {
    throw_data_error("'{}' is not the report of a run: it has no number \"format\"", path);
  }
  if (found != kReportFormat) {
    throw_data_error("'{}' has format {}, but this braid reads format {}", path, found.dump(),
                     kReportFormat);
  }
  for (const char* part : {"data", "timeline"}) {
    if (!json.contains(part) || !json[part].is_object()) {
      throw_data_error("'{}' is damaged: it has no object \"{}\"", path, part);
    }
  }
  if (!json.contains("schedule") || !json["schedule"].is_string()) {
    throw_data_error("'{}' is damaged: it has no text \"schedule\"", path);
  }
}

/// "a" of "runs/a/".
std::string folder_name(const std::string& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

/// The title of the run in the data.
std::string title_in(const Json& data) {
  const auto title = data.find("title");
  return title != data.end() && title->is_string() ? title->get<std::string>() : "";
}

/// The parts of the data that come from a traced step.
constexpr const char* kTracedParts[] = {"memory_over_time", "communication", "ranks",
                                        "traced_steps"};

bool has_traced_step(const Json& run) {
  const auto ranks = run["timeline"].find("ranks");
  return ranks != run["timeline"].end() && !ranks->empty();
}

/// The earlier report; null if there is no readable one.
Json earlier_report(const std::string& path) {
  try {
    Json json = parse_file(path);
    check_format(path, json);
    return has_traced_step(json) ? json : Json();
  } catch (const DataError&) {
    return {};
  }
}

}  // namespace

RunReport with_earlier_trace(RunReport report, const std::string& path, const std::string& remark) {
  const Json earlier = earlier_report(path);
  Json json = parse_ordered_json(report.json, "the new report");
  if (earlier.is_null() || has_traced_step(json)) {
    return report;
  }
  json["timeline"] = earlier["timeline"];
  for (const char* part : kTracedParts) {
    if (earlier["data"].contains(part)) {
      json["data"][part] = earlier["data"][part];
    }
  }
  const auto earlier_remark = earlier["data"].find("trace_remark");
  json["data"]["trace_remark"] =
      earlier_remark != earlier["data"].end() ? *earlier_remark : Json(remark);
  report.json = script_json(json);
  return report;
}

void save_run_report(const std::string& path, const RunReport& run) {
  write_file_atomically(path, run.json + "\n");
}

RunReport load_run_report(const std::string& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  if (!is_folder && !fs::exists(path, error)) {
    throw_data_error("'{}' does not exist", path);
  }
  const std::string file = is_folder ? (fs::path(path) / kRunReportFile).string() : path;
  if (!fs::exists(file, error)) {
    throw_data_error("'{}' is not a run folder: it has no {}, which `braid train` writes", path,
                     kRunReportFile);
  }
  Json json = parse_file(file);
  check_format(file, json);
  std::string note;
  if (is_folder) {
    const Metrics metrics = read_metrics((fs::path(path) / "metrics.jsonl").string());
    note = damage_note(metrics);
    set_metrics(json["data"], metrics);
    json["data"]["title"] = folder_name(path);
  }
  return {.title = title_in(json["data"]), .json = script_json(json), .note = std::move(note)};
}

}  // namespace braid
