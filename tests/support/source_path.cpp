#include "support/source_path.h"

namespace braid {

std::string source_path(std::string_view relative) {
  return std::string(BRAID_SOURCE_DIR "/").append(relative);
}

}  // namespace braid
