#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

namespace braid {

/// The machine code of an object made by scripts/sm90_kernels, in this process. The object manages
/// its loaded code, so it is loaded once and never unloaded: one Sm90Kernel per object and process.
class Sm90Kernel {
 public:
  /// Functions that the object exports; their arguments are those of its generated header.
  using Call = void (*)(void** args);

  Sm90Kernel(Call load_library, Call prepare_device)
      : load_library_(load_library), prepare_device_(prepare_device) {}

  /// Loads the kernel on the current device, `device`: a capture must not load code. Throws
  /// DeviceError.
  void prepare(int device);

 private:
  void load_code() const;

  Call load_library_;
  Call prepare_device_;
  std::mutex mutex_;
  cudaLibrary_t library_ = nullptr;
};

}  // namespace braid
