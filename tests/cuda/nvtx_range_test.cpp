#include "backends/cuda/nvtx_range.h"

#include <gmock/gmock.h>

#define NVTX_NO_IMPL  // nvtx_range.cpp has it; this program is its profiler, see below
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "support/cuda_executors.h"
#include "support/cuda_kernel_case.h"
#include "support/step_program.h"

namespace braid {
namespace {

/// What a profiler would be told.
class Listener {
 public:
  static Listener& get() {
    static Listener listener;
    return listener;
  }

  void record(std::string line) {
    const std::lock_guard lock(mutex_);
    if (listening_) {
      lines_.push_back(std::move(line));
    }
  }
  void start() {
    const std::lock_guard lock(mutex_);
    lines_.clear();
    listening_ = true;
  }
  std::vector<std::string> stop() {
    const std::lock_guard lock(mutex_);
    listening_ = false;
    return lines_;
  }

 private:
  std::mutex mutex_;
  bool listening_ = false;
  std::vector<std::string> lines_;
};

nvtxDomainHandle_t create_domain(const char* name) {
  return std::string(name) == "braid" ? reinterpret_cast<nvtxDomainHandle_t>(1) : nullptr;
}

/// Libraries have ranges of their own (cub's have messages of another type), in other domains.
bool is_ours(nvtxDomainHandle_t domain) {
  return domain == reinterpret_cast<nvtxDomainHandle_t>(1);
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  if (is_ours(domain)) {
    Listener::get().record(std::string("push ") + attributes->message.ascii);
  }
  return 0;
}

int pop(nvtxDomainHandle_t domain) {
  if (is_ours(domain)) {
    Listener::get().record("pop");
  }
  return 0;
}

nvtxRangeId_t start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  if (is_ours(domain)) {
    Listener::get().record(std::string("start ") + attributes->message.ascii);
  }
  return 77;
}

void end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  if (is_ours(domain)) {
    Listener::get().record("end " + std::to_string(id));
  }
}

bool is_attached = false;

/// What NVTX calls at the first range of the process, as it would call a profiler.
int attach(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  const auto set = [&](NvtxCallbackIdCore2 id, auto* function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  set(NVTX_CBID_CORE2_DomainCreateA, create_domain);
  set(NVTX_CBID_CORE2_DomainRangePushEx, push);
  set(NVTX_CBID_CORE2_DomainRangePop, pop);
  set(NVTX_CBID_CORE2_DomainRangeStartEx, start);
  set(NVTX_CBID_CORE2_DomainRangeEnd, end);
  is_attached = true;
  return 1;
}

}  // namespace
}  // namespace braid

// NVTX looks for this name in the program itself where no profiler is given from outside.
extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = braid::attach;
}

namespace braid {
namespace {

using ::testing::ElementsAre;

/// The tool that this process was started under and to which NVTX goes before the program itself is
/// asked, as "VARIABLE=value": compute-sanitizer and Nsight Systems set these. Empty without one.
std::string other_listener() {
  for (const char* name : {"NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "LD_PRELOAD"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') {
      return std::string(name) + "=" + value;
    }
  }
  return "";
}

class NvtxRangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const bool heard = nvtx_is_heard();  // makes NVTX look for a listener
    if (!is_attached && !other_listener().empty()) {
      GTEST_SKIP() << "NVTX ranges go to the tool that runs this test (" << other_listener() << ")";
    }
    ASSERT_TRUE(is_attached && heard);
  }
};

TEST_F(NvtxRangeTest, RangesNestAndEndWithTheirLives) {
  Listener::get().start();
  {
    const NvtxRange outer([] { return std::string("outer"); });
    const NvtxRange inner([] { return std::string("inner"); });
  }
  EXPECT_THAT(Listener::get().stop(), ElementsAre("push outer", "push inner", "pop", "pop"));
}

TEST_F(NvtxRangeTest, ASpanEndsOnceOrWhenTheNextBegins) {
  Listener::get().start();
  {
    NvtxSpan span;
    span.end();
    span.begin([] { return std::string("a"); });
    span.begin([] { return std::string("b"); });
    span.end();
    span.end();
    span.begin([] { return std::string("c"); });
  }
  EXPECT_THAT(Listener::get().stop(),
              ElementsAre("start a", "end 77", "start b", "end 77", "start c", "end 77"));
}

TEST_F(NvtxRangeTest, StepsTasksCapturesAndLaunchesAreRanges) {
  if (!why_no_gpu().empty()) {
    GTEST_SKIP() << why_no_gpu();
  }
  StepProgram builder;
  builder.fill(builder.stream("compute"), builder.persistent("out", 4), 1);
  const Program program = builder.finish();
  const std::string task = "push " + describe_task(program, TaskId(0));
  Listener::get().start();
  const auto executor = make_cuda_executor(program);
  executor->run(0);
  executor->run(0);
  EXPECT_THAT(Listener::get().stop(),
              ElementsAre("push capture step", task, "pop", "pop",  //
                          "start step 0 of step", task, "pop", "end 77", "start step 1 of step",
                          "push launch step", "pop", "end 77"));
}

}  // namespace
}  // namespace braid
