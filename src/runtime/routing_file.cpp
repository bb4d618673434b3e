#include "runtime/routing_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "runtime/rank_routing.h"

namespace braid {
namespace {

constexpr const char* kFormat = "braid routing 1";
constexpr int64_t kExpertBytes = 2;

[[noreturn]] void throw_no_routing(const std::string& path, const std::string& why) {
  throw_data_error("moe.replay = {}: {}; it must be a file that moe.record has written",
                   quote(path), why);
}

nlohmann::json header_of(const PieceFile& file) {
  if (file.size_bytes() < kRoutingHeaderBytes) {
    throw_no_routing(file.path(), fmt::format("has {} bytes", file.size_bytes()));
  }
  std::string text(static_cast<size_t>(kRoutingHeaderBytes), ' ');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  if (!text.starts_with('{')) {
    throw_no_routing(file.path(), "has no header");
  }
  return parse_json(text, quote(file.path()));
}

int64_t number_in(const nlohmann::json& header, const std::string& key, const std::string& path) {
  const auto found = header.find(key);
  const std::optional<int64_t> value = found == header.end() ? std::nullopt : json_integer(*found);
  if (!value || *value < 1) {
    throw_no_routing(path, fmt::format("its header has no {} above 0", key));
  }
  return *value;
}

}  // namespace

int64_t RoutingShape::offset_bytes(int64_t router, const TokenRun& run) const {
  return ((router * samples + run.sample) * sequence + run.position) * per_token * kExpertBytes;
}

int64_t RoutingShape::step_bytes() const {
  return routers * samples * sequence * per_token * kExpertBytes;
}

RoutingShape routing_shape(const RunSpec& run) {
  return {.experts = run.model.experts,
          .per_token = run.model.experts_per_token,
          .routers = std::ssize(router_layers(run.model)),
          .samples = run.config.train.global_batch,
          .sequence = run.config.train.sequence};
}

RecordedRouting::RecordedRouting(const std::string& path, const RoutingShape& shape)
    : file_(path), shape_(shape) {
  const nlohmann::json header = header_of(file_);
  if (header.value("format", "") != kFormat) {
    throw_no_routing(path, fmt::format("its format is not {}", quote(kFormat)));
  }
  const auto require = [&](const char* key, const char* setting, int64_t wanted) {
    const int64_t recorded = number_in(header, key, path);
    if (recorded != wanted) {
      throw_config_error("moe.replay = {}: recorded with {} = {}, but this run has {}", quote(path),
                         setting, recorded, wanted);
    }
  };
  require("experts", "model.experts", shape.experts);
  require("experts_per_token", "model.experts_per_token", shape.per_token);
  require("routers", "layers with experts", shape.routers);
  require("samples", "train.global_batch", shape.samples);
  require("sequence", "train.sequence", shape.sequence);
  first_step_ = number_in(header, "first_step", path);
  const int64_t body_bytes = file_.size_bytes() - kRoutingHeaderBytes;
  num_steps_ = body_bytes / shape.step_bytes();
  if (num_steps_ == 0 || body_bytes % shape.step_bytes() != 0) {
    throw_no_routing(path, fmt::format("has {} bytes of steps, of which each takes {}", body_bytes,
                                       shape.step_bytes()));
  }
}

void RecordedRouting::read(int64_t step, int64_t router, const TokenRun& run,
                           std::span<int32_t> experts) const {
  check(std::ssize(experts) == run.count * shape_.per_token, "{} experts of {} tokens",
        experts.size(), run.count);
  const int64_t past = (step - first_step_) % num_steps_;
  const int64_t index = past < 0 ? past + num_steps_ : past;
  std::vector<uint16_t> recorded(experts.size());
  file_.read_at(
      kRoutingHeaderBytes + index * shape_.step_bytes() + shape_.offset_bytes(router, run),
      std::as_writable_bytes(std::span(recorded)));
  const auto fail = [&](size_t at, const std::string& what) {
    const auto token = run.position + static_cast<int64_t>(at) / shape_.per_token;
    throw_data_error("moe.replay = {}: step {}, router {}, sequence {}, token {}: {}",
                     quote(file_.path()), first_step_ + index, router, run.sample, token, what);
  };
  const auto per_token = static_cast<size_t>(shape_.per_token);
  for (size_t i = 0; i < recorded.size(); ++i) {
    if (recorded[i] == 0 || recorded[i] > shape_.experts) {
      fail(i, recorded[i] == 0
                  ? "was not recorded"
                  : fmt::format("has expert {} of {}", recorded[i] - 1, shape_.experts));
    }
    const auto token = recorded.begin() + static_cast<std::ptrdiff_t>(i / per_token * per_token);
    if (std::find(token, recorded.begin() + static_cast<std::ptrdiff_t>(i), recorded[i]) !=
        recorded.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail(i, fmt::format("has expert {} twice", recorded[i] - 1));
    }
    experts[i] = recorded[i] - 1;
  }
}

RoutingRecord::RoutingRecord(const std::string& path, const RoutingShape& shape,
                             PlacedFile::Mode mode)
    : file_(path, mode), shape_(shape) {}

void RoutingRecord::write_header(int64_t first_step) const {
  const nlohmann::ordered_json header = {{"format", kFormat},
                                         {"experts", shape_.experts},
                                         {"experts_per_token", shape_.per_token},
                                         {"routers", shape_.routers},
                                         {"samples", shape_.samples},
                                         {"sequence", shape_.sequence},
                                         {"first_step", first_step}};
  std::string text = header.dump();
  text.resize(static_cast<size_t>(kRoutingHeaderBytes), ' ');
  text.back() = '\n';
  file_.write_at(0, std::as_bytes(std::span(text)));
}

void RoutingRecord::write(int64_t step, int64_t router, const TokenRun& run,
                          std::span<const int32_t> experts) const {
  check(std::ssize(experts) == run.count * shape_.per_token, "{} experts of {} tokens",
        experts.size(), run.count);
  std::vector<uint16_t> numbers(experts.size());
  std::ranges::transform(experts, numbers.begin(),
                         [](int32_t expert) { return static_cast<uint16_t>(expert + 1); });
  file_.write_at(
      kRoutingHeaderBytes + step * shape_.step_bytes() + shape_.offset_bytes(router, run),
      std::as_bytes(std::span(numbers)));
}

}  // namespace braid
