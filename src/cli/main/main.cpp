#include <unistd.h>

#include <cstdlib>

#include "backends/registry/registry.h"
#include "cli/app.h"

namespace {

/// OpenBLAS chooses its kernels while it is loaded, before main. Where it chose those of an old
/// processor, the program begins again with a better choice, which processes that it starts
/// inherit: matrix products are then six times as fast.
void begin_again_if_faster(char** argv) {
  const auto environment = braid::host_backend().better_environment();
  for (const auto& [name, value] : environment) {
    if (setenv(name.c_str(), value.c_str(), /*overwrite=*/0) != 0) {
      return;
    }
  }
  if (!environment.empty()) {
    execv("/proc/self/exe", argv);  // returns only if it fails: then the program goes on as it is
  }
}

}  // namespace

int main(int argc, char** argv) {
  begin_again_if_faster(argv);
  return braid::run_cli(argc, argv);
}
