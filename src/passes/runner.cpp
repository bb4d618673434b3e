#include "passes/runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "model/blocks/registry.h"
#include "model/mtp.h"
#include "ops/op.h"
#include "parallel/verify_ranks.h"
#include "passes/analysis/step_meaning.h"
#include "passes/analysis/work_coverage.h"
#include "passes/tensor/tensor_sites.h"

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

/// Writes numbered program texts to a folder; does nothing without a folder.
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

  /// Returns "; its text is in PATH" for the program dumped last, or an empty string. Writes the
  /// text again, because a pass may have reported a wrong program as unchanged.
  std::string text_of_failed(const Program& program) const {
    if (path_.empty()) {
      return {};
    }
    write_file_atomically(path_, text_of(program));
    return fmt::format("; its text is in {}", path_);
  }

 private:
  /// An invalid program may have no text.
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

bool cuts_tasks(const Pass& pass) {
  return pass.changes_rounding || pass.splits_calls;
}

/// The ops that are attention, or a part of it.
std::set<std::string> attention_ops(const Program& program) {
  std::set<std::string> ops;
  for (const OpSpec& spec : program.specs.all()) {
    const OpDefinition* const op = find_known_op(spec.op);
    if (op != nullptr && op->family == OpFamily::kAttention) {
      ops.insert(spec.op);
    }
  }
  return ops;
}

bool any_spec(const Program& program, const std::function<bool(const OpSpec&)>& holds) {
  return std::ranges::any_of(program.specs.all(), holds);
}

bool predicts_several_tokens(const Program& program) {
  const std::string first_depth = mtp_value(0, "");
  return std::ranges::any_of(
      program.sites, [&](const std::string& site) { return site.starts_with(first_depth); });
}

/// Whether a block of the model has tasks in the program. Their sites begin with layer and block.
bool has_block(const Program& program, const BlockDefinition& block) {
  const std::string in_block = fmt::format(".{}.", block.name);
  return std::ranges::any_of(program.sites, [&](const std::string& site) {
    return site.find(in_block) != std::string::npos;
  });
}

/// Whether ranks multiply rows of their own. StepMeaning takes the results for other values on each
/// rank, since it cannot know that all ranks have these weights. With experts no pass cuts what
/// comes of them.
bool multiplies_own_rows(const Program& program) {
  const auto multiplies = [&](const BlockDefinition* block) {
    return block->multiplies_own_rows && has_block(program, *block);
  };
  return predicts_several_tokens(program) ||
         (!routes_tokens(program) && std::ranges::any_of(all_blocks(), multiplies));
}

/// Whether StepMeaning does not follow cuts of this program. Tensor ranks hold rows of a sequence,
/// and either they multiply these, for latents or to predict several tokens, or they sum features
/// in chunks while context ranks exchange rows.
bool has_chunks_beyond_meaning(const Program& program) {
  const auto communicates = [&](CommOp op) {
    return any_spec(program, [&](const OpSpec& spec) { return communicates_as(spec, op); });
  };
  const bool has_columns =
      any_spec(program, [](const OpSpec& spec) { return value_rule(spec) == ValueRule::kColumns; });
  return communicates(CommOp::kReduceScatter) &&
         (multiplies_own_rows(program) || (has_columns && communicates(CommOp::kAllToAll)));
}

/// Compares all that the program computes, but for rounding; only the products if StepMeaning does
/// not follow what the pass has made (step_meaning.h).
std::vector<Violation> compare_pieces(const Program& before, const Program& after,
                                      size_t max_violations) {
  if (attention_ops(before) != attention_ops(after) || has_chunks_beyond_meaning(after)) {
    const std::set<std::string> ops = WorkCoverage::ops_in(before);
    return compare_coverage(WorkCoverage(before, ops), after, WorkCoverage(after, ops));
  }
  return compare_meaning(StepMeaning(before, StepMeaning::Of::kSums), after,
                         StepMeaning(after, StepMeaning::Of::kSums), max_violations);
}

/// Compares the program after a pass with the program before: the same bits or, if the pass cuts
/// tasks, the same but for rounding.
class MeaningCheck {
 public:
  explicit MeaningCheck(const Program& program) : meaning_(program) {}

  /// Call before each pass.
  void note(const Pass& pass, const Program& program) {
    if (cuts_tasks(pass)) {
      before_ = program;
    }
  }

  /// Throws InternalError naming pass, buffers and dump if the program now computes something else.
  void check(const Pass& pass, const Program& program, const Dumper& dumper) {
    StepMeaning meaning(program);
    const std::vector<Violation> violations =
        cuts_tasks(pass) ? compare_pieces(before_, program, kMaxShown)
                         : compare_meaning(meaning_, program, meaning, kMaxShown);
    if (!violations.empty()) {
      std::vector<std::string_view> lines;
      std::ranges::transform(violations, std::back_inserter(lines),
                             [](const Violation& it) { return std::string_view(it.message); });
      throw_internal_error("pass {} changes what program {} computes: {}{}", pass.name,
                           program.name, join(lines, "; "), dumper.text_of_failed(program));
    }
    meaning_ = std::move(meaning);
    before_ = {};
  }

 private:
  static constexpr size_t kMaxShown = 4;

  StepMeaning meaning_;
  Program before_;  // a pass that cuts tasks
};

std::string why_skipped(const Pass& pass, const PassContext& context, const RunOptions& options) {
  if (std::ranges::find(options.disabled_passes, pass.name) != options.disabled_passes.end()) {
    return "disabled";
  }
  return pass.changes_rounding && !context.may_change_rounding ? "not permitted to change rounding"
                                                               : std::string();
}

PassRecord skipped(const Pass& pass, std::string reason) {
  return {pass.name, true, 0, {false, 0, std::move(reason)}};
}

/// Runs one pass that is not skipped and stores the result in `program`.
PassRecord run_pass(const Pass& pass, Program& program, const PassContext& context) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  PassResult result = pass.run(std::move(program), context);
  const auto duration = Clock::now() - begin;
  program = std::move(result.program);
  return {pass.name, false, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count(),
          std::move(result.report)};
}

PassRecord run_pass(const Pass& pass, AllRanks& all, const PassContext& context) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  PassReport report = pass.run_all(all, context);
  const auto duration = Clock::now() - begin;
  return {pass.name, false, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count(),
          std::move(report)};
}

/// Compares the programs of all ranks with those before the pass.
class AllRanksCheck {
 public:
  AllRanksCheck(const AllRanks& all, const RunOptions& options) : all_(all), options_(options) {
    for (const Program* const program : all.ranks.programs) {
      dumpers_.emplace_back(dump_folder_of(options.dump_folder, *program));
      if (options.verify) {
        meanings_.emplace_back(*program);
      }
    }
    fits_ = options.verify && verify_ranks(all.ranks).empty();
  }

  /// Call before the pass.
  void note(const Pass& pass) {
    for (size_t i = 0; i < meanings_.size(); ++i) {
      meanings_[i].note(pass, *all_.ranks.programs[i]);
    }
  }

  /// `number` is the position of the pass in its list. Throws InternalError naming the pass.
  void check(const Pass& pass, size_t number, bool is_changed) {
    for (size_t i = 0; i < all_.ranks.programs.size(); ++i) {
      const Program& program = *all_.ranks.programs[i];
      dumpers_[i].dump(number, pass.name, program, is_changed);
      if (options_.verify && is_changed) {
        verify_after(program, Ordering::kEvents, fmt::format("pass {}", pass.name), dumpers_[i]);
        meanings_[i].check(pass, program, dumpers_[i]);
      }
    }
    if (fits_ && is_changed) {
      verify_ranks_or_throw(all_.ranks, fmt::format("pass {}", pass.name));
    }
  }

 private:
  const AllRanks& all_;
  const RunOptions& options_;
  std::vector<Dumper> dumpers_;  // by planned rank
  std::vector<MeaningCheck> meanings_;
  bool fits_ = false;  // ranks that stand for others need not fit together: then none are looked at
};

}  // namespace

std::string dump_folder_of(const std::string& folder, const Program& program) {
  return folder.empty() ? folder : fmt::format("{}/rank{}.{}", folder, program.rank, program.name);
}

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
  bool has_events = false;
  for (const Pass& pass : passes) {
    if (pass.run_all) {
      continue;
    }
    has_events = pass.places_events;
    if (std::string reason = why_skipped(pass, context, options); !reason.empty()) {
      records.push_back(skipped(pass, std::move(reason)));
      continue;
    }
    if (meaning) {
      meaning->note(pass, program);
    }
    records.push_back(run_pass(pass, program, context));
    dumper.dump(records.size(), pass.name, program, records.back().report.changed);
    verify(pass.places_events ? Ordering::kEvents : Ordering::kProgramOrder,
           fmt::format("pass {}", pass.name));
    if (meaning && records.back().report.changed && !pass.places_events) {
      meaning->check(pass, program, dumper);
    }
  }
  if (!has_events) {
    verify(Ordering::kEvents, "the last pass");
  }
  return {std::move(program), std::move(records)};
}

std::vector<PassRecord> run_all_passes(AllRanks& all, std::span<const Pass> passes,
                                       const PassContext& context, const RunOptions& options) {
  check_disabled(passes, options.disabled_passes);
  AllRanksCheck check(all, options);
  std::vector<PassRecord> records;
  for (size_t i = 0; i < passes.size(); ++i) {
    const Pass& pass = passes[i];
    if (!pass.run_all) {
      continue;
    }
    if (std::string reason = why_skipped(pass, context, options); !reason.empty()) {
      records.push_back(skipped(pass, std::move(reason)));
      continue;
    }
    check.note(pass);
    records.push_back(run_pass(pass, all, context));
    check.check(pass, i + 1, records.back().report.changed);
  }
  return records;
}

}  // namespace braid
