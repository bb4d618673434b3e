#include "backends/run_ranks.h"

#include <exception>

#include "comm/transport.h"

namespace braid {
namespace {

/// Keeps the first error that is a cause, or else the first echo.
class RootCause {
 public:
  template <class Call>
  bool guard(Call&& call) {
    try {
      call();
      return true;
    } catch (const AbortedError&) {
      echo_ = echo_ ? echo_ : std::current_exception();
    } catch (...) {
      cause_ = cause_ ? cause_ : std::current_exception();
    }
    return false;
  }

  void rethrow() const {
    if (cause_ || echo_) {
      std::rethrow_exception(cause_ ? cause_ : echo_);
    }
  }

 private:
  std::exception_ptr cause_;
  std::exception_ptr echo_;
};

}  // namespace

void run_ranks(std::span<Executor* const> ranks, size_t program_index) {
  RootCause errors;
  size_t num_launched = 0;
  while (num_launched < ranks.size() &&
         errors.guard([&] { ranks[num_launched]->launch(program_index); })) {
    ++num_launched;
  }
  for (Executor* rank : ranks.first(num_launched)) {
    errors.guard([&] { rank->wait(); });
  }
  errors.rethrow();
}

}  // namespace braid
