#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/verify_ranks.h"
#include "support/rank_program_writer.h"

namespace braid {

inline std::vector<std::string> faults_of(const RankPrograms& ranks,
                                          const VerifyRanksOptions& options = {}) {
  std::vector<std::string> messages;
  for (const Violation& violation : verify_ranks(ranks, options)) {
    EXPECT_EQ(violation.message.find('\n'), std::string::npos);
    messages.push_back(violation.message);
  }
  return messages;
}

inline std::vector<std::string> faults_of(const std::vector<Program>& programs,
                                          const VerifyRanksOptions& options = {}) {
  return faults_of(one_program_per_rank(programs), options);
}

/// The only fault.
inline std::string fault_of(const std::vector<Program>& programs) {
  const std::vector<std::string> faults = faults_of(programs);
  EXPECT_EQ(faults.size(), 1u) << ::testing::PrintToString(faults);
  return faults.empty() ? "" : faults.front();
}

inline Label at_layer(int32_t layer) {
  return {.phase = Phase::kComm, .layer = layer};
}
inline Label at_microbatch(int32_t microbatch) {
  return {.phase = Phase::kComm, .microbatch = microbatch};
}

/// Two ranks, streams "compute" and "comm", one group "pair" of both.
class Pair {
 public:
  Pair() {
    for (int rank = 0; rank < 2; ++rank) {
      writers_.emplace_back(rank, 2, std::vector<std::string>{"compute", "comm"});
      writers_.back().add_group("pair", {0, 1});
    }
  }
  RankProgramWriter& operator[](size_t rank) { return writers_[rank]; }
  void on_both(const std::string& op, int64_t elems, const Label& label) {
    for (RankProgramWriter& writer : writers_) {
      writer.collective(op, 0, elems, 0, label);
    }
  }
  std::vector<Program> take() {
    std::vector<Program> programs;
    for (RankProgramWriter& writer : writers_) {
      programs.push_back(writer.take());
    }
    return programs;
  }

 private:
  std::vector<RankProgramWriter> writers_;
};

}  // namespace braid
