#pragma once

#include <string>
#include <string_view>

#include "ir/program.h"

namespace braid {

/// The program as text, one line per stream, group, buffer and task, in this order:
///
///   program step rank=0 ranks=2 events=1
///   stream compute kind=compute priority=0
///   group dp kind=data ranks=0,1
///   buffer x bf16 [4,32] activation step device
///   linear(x, w[0:64] [2,32] -> rw y) {has_bias=false} compute forward mb=0 layer=3 record=e0
///
/// An operand names a buffer, then the element range unless it is the whole buffer, then dtype and
/// shape where they differ from the buffer's (of a part: from [number of elements]). Operands
/// before
/// `->` are read and those after it are written, unless `read`, `write` or `rw` says otherwise.
/// After the attributes come stream, phase, and what applies of mb, vs (virtual stage), layer,
/// site, record and wait. Names that are no plain words are quoted; a buffer, stream or site may
/// also be given by its index (`#3`), which is how ambiguous or missing ones are printed. A line
/// that starts with `#` is a comment.
///
/// `parse_program` is the inverse: parsing the text gives the printed program, and printing that
/// gives the same text. Throws InternalError if a task refers to a spec, operands or waits that do
/// not exist.
std::string print_program(const Program& program);

/// Reads what `print_program` writes, and any other spacing. Throws DataError with line, column and
/// what was expected. Refuses nothing that is well formed: semantics are `verify`'s business.
Program parse_program(std::string_view text);

/// Attribute value as in program text: `false`, `3`, `1.0`, `1e-05`, `"text"`. Numbers are shortest
/// decimals that give back the same value.
std::string print_attribute_value(const AttributeValue& value);

/// True for words that begin a line or an operand, so that an op or a buffer of that name is
/// quoted.
bool is_reserved_word(std::string_view word);

/// True for characters that a plain word may consist of: letters, digits and `_ . / -`. It starts
/// with a letter or `_` and does not end with `-`.
bool is_word_character(char c);

}  // namespace braid
