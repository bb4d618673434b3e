// Any bytes as program text: a program that prints and reads back the same and that the verifier
// can judge, or one of braid's errors.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "ir/text.h"
#include "ir/verify.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const braid::Program program =
        braid::parse_program(std::string_view(reinterpret_cast<const char*>(data), size));
    const std::string text = braid::print_program(program);
    const braid::Program again = braid::parse_program(text);
    if (!(again == program) || braid::print_program(again) != text) {
      std::abort();
    }
    static_cast<void>(braid::verify(program));
    static_cast<void>(braid::verify(program, 4, braid::Ordering::kProgramOrder));
  } catch (const braid::InternalError&) {
    std::abort();  // a broken invariant of ours is a finding
  } catch (const braid::Error&) {
  }
  return 0;
}
