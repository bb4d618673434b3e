#include "report/metrics_file.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <variant>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 32;
constexpr int64_t kMaxLineBytes = 1 << 16;  // ours have some hundred bytes

/// Calls visit(name, member) for each number of a step.
template <class Record, class Visit>
void visit_members(Record& record, Visit&& visit) {
  visit("step", record.step);
  visit("loss", record.loss);
  visit("learning_rate", record.learning_rate);
  visit("grad_norm", record.grad_norm);
  visit("step_ms", record.step_ms);
  visit("tokens_per_s", record.tokens_per_s);
  visit("tflops_per_s_per_rank", record.tflops_per_s_per_rank);
  visit("consumed_samples", record.consumed_samples);
  visit("consumed_tokens", record.consumed_tokens);
  visit("skipped_steps", record.skipped_steps);
  visit("nan_steps", record.nan_steps);
}

/// Of steps that ran again; few do.
constexpr const char* kReruns = "reruns";

/// Of runs with multi-token prediction.
constexpr const char* kMtpLosses = "mtp_losses";

/// Of runs with train.z_loss; of routers, in each record.
constexpr const char* kZLoss = "z_loss";

/// Of runs with preference.loss, under the names of TRL's DPOTrainer.
template <class Record, class Visit>
void visit_preference(Record& record, Visit&& visit) {
  visit("rewards/chosen", record.chosen_reward);
  visit("rewards/rejected", record.rejected_reward);
  visit("rewards/accuracies", record.accuracy);
  visit("logps/chosen", record.chosen_logp);
  visit("logps/rejected", record.rejected_logp);
}
constexpr const char* kMargin = "rewards/margins";

void write_preference(const std::optional<PreferenceRecord>& record, Json& json) {
  if (record) {
    visit_preference(*record, [&](const char* name, double value) { json[name] = value; });
    json[kMargin] = record->margin();
  }
}

/// Throws bad_optional_access if it is no integer.
void read_member(const Json& json, const char* name, int64_t& value) {
  value = json_integer(json.at(name)).value();
}

double number_or_nan(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

void read_member(const Json& json, const char* name, double& value) {
  value = number_or_nan(json.at(name));
}

/// Those of a line that has them.
std::optional<PreferenceRecord> read_preference(const Json& json) {
  if (!json.contains(kMargin)) {
    return std::nullopt;
  }
  PreferenceRecord record;
  visit_preference(record,
                   [&](const char* name, double& value) { read_member(json, name, value); });
  return record;
}

/// The numbers of what FP8 loses.
template <class Record, class Visit>
void visit_fp8(Record& record, Visit&& visit) {
  visit("step", record.step);
  visit("amax", record.amax);
  visit("flushed", record.flushed);
  visit("saturated", record.saturated);
}

/// Files that were written before it have no such member.
constexpr std::string_view kSequenceBalanceLoss = "sequence_balance_loss";

/// The numbers of the loads of experts.
template <class Record, class Visit>
void visit_experts(Record& record, Visit&& visit) {
  visit("step", record.step);
  visit("max_violation", record.max_violation);
  visit("min_ratio", record.min_ratio);
  visit("std_ratio", record.std_ratio);
  visit("entropy", record.entropy);
  visit("dead", record.dead);
  visit("balance_loss", record.balance_loss);
  visit(kSequenceBalanceLoss.data(), record.sequence_balance_loss);
  visit(kZLoss, record.z_loss);
}

/// The capacity that would have sufficed, if the room is that of experts.
constexpr const char* kExpertCapacity = "sufficient_expert_capacity";

/// The numbers of room for rows.
template <class Room, class Visit>
void visit_room(Room& room, Visit&& visit) {
  visit("dropped_rows", room.dropped_rows);
  visit("dropped_share", room.dropped_share);
  visit("room_used", room.room_used);
  visit(room.of_experts ? kExpertCapacity : "sufficient_capacity", room.sufficient_capacity);
}

void read_counts(const Json& json, std::vector<int64_t>& counts) {
  if (json.contains("counts")) {
    for (const Json& count : json.at("counts")) {
      counts.push_back(std::max<int64_t>(json_integer(count).value(), 0));
    }
  }
}

using Record = std::variant<StepRecord, EvalRecord, RerunRecord, Fp8Record, ExpertRecord>;

/// Throws DataError for a line that is not JSON, and std::exception if a member is missing or of
/// another type.
Record parse_record(std::string_view line, std::string_view where) {
  const Json json = parse_ordered_json(line, where, {.size_bytes = kMaxLineBytes});
  if (json.contains("valid_loss")) {
    EvalRecord record;
    read_member(json, "step", record.step);
    read_member(json, "valid_loss", record.loss);
    record.preference = read_preference(json);
    return record;
  }
  if (json.contains("rerun")) {
    RerunRecord record{.message = json.at("rerun").get<std::string>()};
    read_member(json, "step", record.step);
    read_member(json, "from_step", record.from_step);
    return record;
  }
  const auto read = [&](const char* name, auto& member) { read_member(json, name, member); };
  if (json.contains("fp8_site")) {
    Fp8Record record{.site = json.at("fp8_site").get<std::string>(),
                     .factor = json.at("factor").get<std::string>()};
    visit_fp8(record, read);
    return record;
  }
  if (json.contains("expert_layer")) {
    ExpertRecord record{.layer = json.at("expert_layer").get<std::string>(),
                        .sequence_balance_loss = std::numeric_limits<double>::quiet_NaN()};
    visit_experts(record, [&](const char* name, auto& member) {
      if (name != kSequenceBalanceLoss || json.contains(name)) {
        read(name, member);
      }
    });
    read_counts(json, record.counts);
    if (json.contains("room_used")) {
      record.room = {.of_experts = json.contains(kExpertCapacity)};
      visit_room(*record.room, read);
    }
    return record;
  }
  StepRecord record;
  visit_members(record, read);
  if (json.contains(kReruns)) {
    read_member(json, kReruns, record.reruns);
  }
  if (json.contains(kMtpLosses)) {
    for (const Json& loss : json.at(kMtpLosses)) {
      record.mtp_losses.push_back(number_or_nan(loss));
    }
  }
  if (json.contains(kZLoss)) {
    record.z_loss = number_or_nan(json.at(kZLoss));
  }
  record.preference = read_preference(json);
  return record;
}

Record checked_record(std::string_view line, const std::string& path, int64_t number) {
  const std::string where = fmt::format("'{}' line {}", path, number);
  try {
    return parse_record(line, where);
  } catch (const DataError&) {
    throw;
  } catch (const std::exception&) {
    throw_data_error("{} is not a record of a step, an evaluation, a rerun, FP8 or experts: {}",
                     where, quote(trim(line), 60));
  }
}

/// Calls visit(line, record) for each line, "\n" included, and counts damaged lines in `metrics`,
/// except a last line that a killed run left incomplete.
template <class Visit>
void visit_lines(const std::string& path, Metrics& metrics, Visit&& visit) {
  const std::string text = read_text_file(path, kMaxFileBytes);
  size_t begin = 0;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      return;
    }
    const std::string_view line(text.data() + begin, end + 1 - begin);
    begin = end + 1;
    try {
      visit(line, checked_record(line, path, number));
    } catch (const DataError& error) {
      if (begin < text.size() && metrics.num_damaged_lines++ == 0) {
        metrics.first_damage = error.what();
      }
    }
  }
}

void add_record(const Record& record, Metrics& metrics) {
  if (const auto* step = std::get_if<StepRecord>(&record)) {
    metrics.steps.push_back(*step);
  } else if (const auto* rerun = std::get_if<RerunRecord>(&record)) {
    metrics.reruns.push_back(*rerun);
  } else if (const auto* fp8 = std::get_if<Fp8Record>(&record)) {
    metrics.fp8.push_back(*fp8);
  } else if (const auto* experts = std::get_if<ExpertRecord>(&record)) {
    metrics.experts.push_back(*experts);
  } else {
    metrics.evaluations.push_back(std::get<EvalRecord>(record));
  }
}

bool exists(const std::string& path) {
  std::error_code error;  // if the path cannot be examined, reading it says why
  return std::filesystem::exists(path, error) || error;
}

}  // namespace

std::string metrics_line(const StepRecord& record) {
  Json json;
  visit_members(record, [&](const char* name, const auto& member) { json[name] = member; });
  if (record.reruns > 0) {
    json[kReruns] = record.reruns;
  }
  if (!record.mtp_losses.empty()) {
    json[kMtpLosses] = record.mtp_losses;
  }
  if (record.z_loss) {
    json[kZLoss] = *record.z_loss;
  }
  write_preference(record.preference, json);
  return json.dump() + "\n";
}

std::string metrics_line(const EvalRecord& record) {
  Json json{{"step", record.step}, {"valid_loss", record.loss}};
  write_preference(record.preference, json);
  return json.dump() + "\n";
}

std::string metrics_line(const RerunRecord& record) {
  const Json json{
      {"step", record.step}, {"from_step", record.from_step}, {"rerun", record.message}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string metrics_line(const Fp8Record& record) {
  Json json{{"fp8_site", record.site}, {"factor", record.factor}};
  visit_fp8(record, [&](const char* name, const auto& member) { json[name] = member; });
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string metrics_line(const ExpertRecord& record) {
  Json json{{"expert_layer", record.layer}};
  const auto write = [&](const char* name, const auto& member) { json[name] = member; };
  visit_experts(record, write);
  if (record.room) {
    visit_room(*record.room, write);
  }
  if (!record.counts.empty()) {
    json["counts"] = record.counts;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Metrics read_metrics(const std::string& path) {
  Metrics metrics;
  if (exists(path)) {
    visit_lines(path, metrics,
                [&](std::string_view, const Record& record) { add_record(record, metrics); });
  }
  return metrics;
}

Metrics keep_metrics_before(const std::string& path, int64_t first_step) {
  Metrics kept;
  std::string kept_lines;
  if (first_step > 1 && exists(path)) {
    visit_lines(path, kept, [&](std::string_view line, const Record& record) {
      if (std::visit([](const auto& any) { return any.step; }, record) < first_step ||
          std::holds_alternative<RerunRecord>(record)) {
        add_record(record, kept);
        kept_lines += line;
      }
    });
  }
  write_file_atomically(path, kept_lines);
  return kept;
}

std::string damage_note(const Metrics& metrics) {
  const int64_t more = metrics.num_damaged_lines - 1;
  if (more < 0) {
    return {};
  }
  return fmt::format("note     {}; {} left out", metrics.first_damage,
                     more == 0   ? "this line is"
                     : more == 1 ? "it and another damaged line are"
                                 : fmt::format("it and {} other damaged lines are", more));
}

}  // namespace braid
