#include "base/failure_note.h"

#include <mutex>

namespace braid {
namespace {

struct Note {
  std::mutex mutex;
  std::optional<std::string> text;
};

Note& note() {
  static Note only;
  return only;
}

}  // namespace

void note_failure(const std::string& what) {
  const std::scoped_lock lock(note().mutex);
  if (!note().text) {
    note().text = what;
  }
}

std::optional<std::string> noted_failure() {
  const std::scoped_lock lock(note().mutex);
  return note().text;
}

}  // namespace braid
