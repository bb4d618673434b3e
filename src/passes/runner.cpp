#include "passes/runner.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/analysis/step_meaning.h"

namespace braid {
namespace {

void check_disabled(std::span<const Pass> passes, std::span<const std::string> disabled) {
  for (const std::string& name : disabled) {
    const auto found = std::ranges::find(passes, name, &Pass::name);
    if (found == passes.end()) {
      std::vector<std::string_view> names;
      std::ranges::transform(passes, std::back_inserter(names), &Pass::name);
      throw_config_error("cannot disable pass {}: there is no such pass (there are {}){}",
                         quote(name), join(names, ", "), did_you_mean(name, names));
    }
    if (!found->why_required.empty()) {
      throw_config_error("cannot disable pass {}: it is required, because without it {}",
                         quote(name), found->why_required);
    }
  }
}

/// Writes numbered program texts to a folder, or nothing if there is none.
class Dumper {
 public:
  explicit Dumper(const std::string& folder) : folder_(folder) {
    if (folder_.empty()) {
      return;
    }
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) {
      throw_data_error("cannot create the folder {} for program dumps: {}", folder_,
                       error.message());
    }
  }

  /// As NNN_name.txt.
  void dump(size_t number, std::string_view name, const Program& program, bool is_changed) {
    if (!folder_.empty()) {
      path_ = fmt::format("{}/{:03}_{}.txt", folder_, number, name);
      write_file_atomically(path_, is_changed ? text_of(program) : "# unchanged\n");
    }
  }

  /// "; its text is in PATH" for the program dumped last, or nothing. Writes it again: what is
  /// wrong may be called unchanged.
  std::string text_of_failed(const Program& program) const {
    if (path_.empty()) {
      return {};
    }
    write_file_atomically(path_, text_of(program));
    return fmt::format("; its text is in {}", path_);
  }

 private:
  /// A program that is wrong may have no text.
  static std::string text_of(const Program& program) {
    try {
      return print_program(program);
    } catch (const InternalError& error) {
      return fmt::format("# cannot be printed: {}\n", error.what());
    }
  }

  std::string folder_;
  std::string path_;
};

/// Throws InternalError naming `after` and the dump if the program is wrong.
void verify_after(const Program& program, Ordering ordering, std::string_view after,
                  const Dumper& dumper) {
  try {
    verify_or_throw(program, after, ordering);
  } catch (const InternalError& error) {
    throw_internal_error("{}{}", error.what(), dumper.text_of_failed(program));
  }
}

/// Holds what a pass makes of a program against what it was: the same bits, unless the pass may
/// change rounding.
class MeaningCheck {
 public:
  explicit MeaningCheck(const Program& program) : meaning_(program) {}

  /// Throws InternalError naming pass, buffers and dump if the program computes something else now.
  void check(const Pass& pass, const Program& program, const Dumper& dumper) {
    StepMeaning meaning(program);
    const std::vector<Violation> violations =
        pass.changes_rounding ? std::vector<Violation>()
                              : compare_meaning(meaning_, program, meaning, kMaxShown);
    if (!violations.empty()) {
      std::vector<std::string_view> lines;
      std::ranges::transform(violations, std::back_inserter(lines),
                             [](const Violation& it) { return std::string_view(it.message); });
      throw_internal_error("pass {} changes what program {} computes: {}{}", pass.name,
                           program.name, join(lines, "; "), dumper.text_of_failed(program));
    }
    meaning_ = std::move(meaning);
  }

 private:
  static constexpr size_t kMaxShown = 4;

  StepMeaning meaning_;
};

std::string why_skipped(const Pass& pass, const PassContext& context, const RunOptions& options) {
  if (std::ranges::find(options.disabled_passes, pass.name) != options.disabled_passes.end()) {
    return "disabled";
  }
  return pass.changes_rounding && !context.may_change_rounding ? "not permitted to change rounding"
                                                               : std::string();
}

/// Runs one pass that is not skipped, and takes the program over into `program`.
PassRecord run_pass(const Pass& pass, Program& program, const PassContext& context) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  PassResult result = pass.run(std::move(program), context);
  const auto duration = Clock::now() - begin;
  program = std::move(result.program);
  return {pass.name, false, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count(),
          std::move(result.report)};
}

}  // namespace

PipelineResult run_passes(Program program, std::span<const Pass> passes, const PassContext& context,
                          const RunOptions& options) {
  check_disabled(passes, options.disabled_passes);
  Dumper dumper(options.dump_folder);
  const auto verify = [&](Ordering ordering, std::string_view after) {
    if (options.verify) {
      verify_after(program, ordering, after, dumper);
    }
  };
  std::vector<PassRecord> records;
  dumper.dump(0, "input", program, true);
  verify(Ordering::kProgramOrder, "the builder");
  std::optional<MeaningCheck> meaning;
  if (options.verify) {
    meaning.emplace(program);
  }
  for (const Pass& pass : passes) {
    if (std::string reason = why_skipped(pass, context, options); !reason.empty()) {
      records.push_back({pass.name, true, 0, {false, 0, std::move(reason)}});
      continue;
    }
    records.push_back(run_pass(pass, program, context));
    dumper.dump(records.size(), pass.name, program, records.back().report.changed);
    verify(pass.places_events ? Ordering::kEvents : Ordering::kProgramOrder,
           fmt::format("pass {}", pass.name));
    if (meaning && records.back().report.changed && !pass.places_events) {
      meaning->check(pass, program, dumper);
    }
  }
  if (passes.empty() || !passes.back().places_events) {
    verify(Ordering::kEvents, "the last pass");
  }
  return {std::move(program), std::move(records)};
}

}  // namespace braid
