#pragma once

#include <cstdint>
#include <string>

/// Ranges on the timelines of NVIDIA's profilers, in the domain "braid". Without a profiler a range
/// costs one comparison, and its name is not computed.
namespace braid {

/// Whether a profiler is attached. The answer is constant in a process.
bool nvtx_is_heard();

/// A range of this thread, for the lifetime of the object; ranges of a thread nest.
class NvtxRange {
 public:
  /// `make_name()` returns the name.
  template <class MakeName>
  explicit NvtxRange(MakeName&& make_name) : open_(nvtx_is_heard()) {
    if (open_) {
      push(make_name());
    }
  }
  ~NvtxRange() {
    if (open_) {
      pop();
    }
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  static void push(const std::string& name);
  static void pop();

  bool open_;
};

/// A range with explicit begin and end, which may be used repeatedly.
class NvtxSpan {
 public:
  NvtxSpan() = default;
  ~NvtxSpan() { end(); }
  NvtxSpan(const NvtxSpan&) = delete;
  NvtxSpan& operator=(const NvtxSpan&) = delete;

  template <class MakeName>
  void begin(MakeName&& make_name) {
    end();
    if (nvtx_is_heard()) {
      id_ = start(make_name());
      open_ = true;
    }
  }
  void end() {
    if (open_) {
      stop(id_);
      open_ = false;
    }
  }

 private:
  static uint64_t start(const std::string& name);
  static void stop(uint64_t id);

  uint64_t id_ = 0;
  bool open_ = false;
};

}  // namespace braid
