#pragma once

#include <string>
#include <string_view>

#include "ir/program.h"

namespace braid {

/// The program as text, one line per stream, group, buffer and task. `parse_program` is its
/// inverse: parsing the text and printing again gives the same text, and the parsed program is the
/// printed one.
std::string print_program(const Program& program);

/// Reads what `print_program` writes. Throws DataError with line, column and what was expected.
/// Refuses nothing that is well formed: semantics are `verify`'s business.
Program parse_program(std::string_view text);

}  // namespace braid
