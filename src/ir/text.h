#pragma once

#include <string>
#include <string_view>

#include "ir/program.h"

namespace braid {

/// Prints a program as text, one line per stream, group, buffer and task, in this order:
///
///    program step rank=0 ranks=2 events=1
///    stream compute kind=compute priority=0
///    group dp kind=data ranks=0,1
///    buffer x bf16 [4,32] activation step device
///    linear(x, w[0:64] [2,32] -> rw y) {has_bias=false} compute forward mb=0 layer=3 record=e0
///
/// An operand is a buffer name, the element range unless it is the whole buffer, and dtype and
/// shape if they differ from the buffer's (for a partial range: from [number of elements]).
/// Operands before `->` are read and operands after it are written, unless marked `read`, `write`
/// or `rw`. After the attributes come stream and phase, then those of mb, vs (virtual stage),
/// layer, site, record and wait that apply. Names that are not plain words are quoted. A buffer,
/// stream or site may also be given by index (`#3`); the printer does so if a name is ambiguous or
/// missing. A line that starts with `#` is a comment.
///
/// `parse_program` is the inverse: parsing the text gives the printed program, and printing that
/// program gives the same text. Throws InternalError if a task refers to a spec, operands or waits
/// that do not exist.
std::string print_program(const Program& program);

/// Parses the output of `print_program`; spacing is free. Throws DataError with line, column and
/// the expected token. Checks syntax only; `verify` checks the semantics.
Program parse_program(std::string_view text);

/// Prints an attribute value as in program text: `false`, `3`, `1.0`, `1e-05`, `"text"`. A number
/// is printed as the shortest decimal that parses back to the same value.
std::string print_attribute_value(const AttributeValue& value);

/// True for words that begin a line or an operand. Ops and buffers with such a name are quoted.
bool is_reserved_word(std::string_view word);

/// True for characters of a plain word: letters, digits and `_ . / -`. A plain word starts with a
/// letter or `_` and does not end with `-`.
bool is_word_character(char c);

}  // namespace braid
