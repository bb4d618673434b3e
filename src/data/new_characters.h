#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace braid {

/// Where the tables of PCRE2 and utf8proc differ from those of Hugging Face's library. The test
/// `tokenizers` compares all code points with the library.
struct CharacterRange {
  uint32_t first = 0;
  uint32_t last = 0;
  std::string_view category = {};  // Unicode's general category, where it matters
};

/// What Unicode 15.0, 15.1 and 16.0 added to 14.0, which PCRE2 10.42 has: with them a regular
/// expression finds what it finds in Hugging Face's library (Oniguruma 6.9.10, Unicode 16.0).
/// Source: UnicodeData.txt. The test `tokenizers` compares all code points with the library.
inline constexpr std::array kNewCharacters = {
    CharacterRange{0x0897, 0x0897, "Mn"},   CharacterRange{0x0CF3, 0x0CF3, "Mc"},
    CharacterRange{0x0ECE, 0x0ECE, "Mn"},   CharacterRange{0x1B4E, 0x1B4F, "Po"},
    CharacterRange{0x1B7F, 0x1B7F, "Po"},   CharacterRange{0x1C89, 0x1C89, "Lu"},
    CharacterRange{0x1C8A, 0x1C8A, "Ll"},   CharacterRange{0x2427, 0x2429, "So"},
    CharacterRange{0x2FFC, 0x2FFF, "So"},   CharacterRange{0x31E4, 0x31E5, "So"},
    CharacterRange{0x31EF, 0x31EF, "So"},   CharacterRange{0xA7CB, 0xA7CC, "Lu"},
    CharacterRange{0xA7CD, 0xA7CD, "Ll"},   CharacterRange{0xA7DA, 0xA7DA, "Lu"},
    CharacterRange{0xA7DB, 0xA7DB, "Ll"},   CharacterRange{0xA7DC, 0xA7DC, "Lu"},
    CharacterRange{0x105C0, 0x105F3, "Lo"}, CharacterRange{0x10D40, 0x10D49, "Nd"},
    CharacterRange{0x10D4A, 0x10D4D, "Lo"}, CharacterRange{0x10D4E, 0x10D4E, "Lm"},
    CharacterRange{0x10D4F, 0x10D4F, "Lo"}, CharacterRange{0x10D50, 0x10D65, "Lu"},
    CharacterRange{0x10D69, 0x10D6D, "Mn"}, CharacterRange{0x10D6E, 0x10D6E, "Pd"},
    CharacterRange{0x10D6F, 0x10D6F, "Lm"}, CharacterRange{0x10D70, 0x10D85, "Ll"},
    CharacterRange{0x10D8E, 0x10D8F, "Sm"}, CharacterRange{0x10EC2, 0x10EC4, "Lo"},
    CharacterRange{0x10EFC, 0x10EFF, "Mn"}, CharacterRange{0x1123F, 0x11240, "Lo"},
    CharacterRange{0x11241, 0x11241, "Mn"}, CharacterRange{0x11380, 0x11389, "Lo"},
    CharacterRange{0x1138B, 0x1138B, "Lo"}, CharacterRange{0x1138E, 0x1138E, "Lo"},
    CharacterRange{0x11390, 0x113B5, "Lo"}, CharacterRange{0x113B7, 0x113B7, "Lo"},
    CharacterRange{0x113B8, 0x113BA, "Mc"}, CharacterRange{0x113BB, 0x113C0, "Mn"},
    CharacterRange{0x113C2, 0x113C2, "Mc"}, CharacterRange{0x113C5, 0x113C5, "Mc"},
    CharacterRange{0x113C7, 0x113CA, "Mc"}, CharacterRange{0x113CC, 0x113CD, "Mc"},
    CharacterRange{0x113CE, 0x113CE, "Mn"}, CharacterRange{0x113CF, 0x113CF, "Mc"},
    CharacterRange{0x113D0, 0x113D0, "Mn"}, CharacterRange{0x113D1, 0x113D1, "Lo"},
    CharacterRange{0x113D2, 0x113D2, "Mn"}, CharacterRange{0x113D3, 0x113D3, "Lo"},
    CharacterRange{0x113D4, 0x113D5, "Po"}, CharacterRange{0x113D7, 0x113D8, "Po"},
    CharacterRange{0x113E1, 0x113E2, "Mn"}, CharacterRange{0x116D0, 0x116E3, "Nd"},
    CharacterRange{0x11B00, 0x11B09, "Po"}, CharacterRange{0x11BC0, 0x11BE0, "Lo"},
    CharacterRange{0x11BE1, 0x11BE1, "Po"}, CharacterRange{0x11BF0, 0x11BF9, "Nd"},
    CharacterRange{0x11F00, 0x11F01, "Mn"}, CharacterRange{0x11F02, 0x11F02, "Lo"},
    CharacterRange{0x11F03, 0x11F03, "Mc"}, CharacterRange{0x11F04, 0x11F10, "Lo"},
    CharacterRange{0x11F12, 0x11F33, "Lo"}, CharacterRange{0x11F34, 0x11F35, "Mc"},
    CharacterRange{0x11F36, 0x11F3A, "Mn"}, CharacterRange{0x11F3E, 0x11F3F, "Mc"},
    CharacterRange{0x11F40, 0x11F40, "Mn"}, CharacterRange{0x11F41, 0x11F41, "Mc"},
    CharacterRange{0x11F42, 0x11F42, "Mn"}, CharacterRange{0x11F43, 0x11F4F, "Po"},
    CharacterRange{0x11F50, 0x11F59, "Nd"}, CharacterRange{0x11F5A, 0x11F5A, "Mn"},
    CharacterRange{0x1342F, 0x1342F, "Lo"}, CharacterRange{0x13439, 0x1343F, "Cf"},
    CharacterRange{0x13440, 0x13440, "Mn"}, CharacterRange{0x13441, 0x13446, "Lo"},
    CharacterRange{0x13447, 0x13455, "Mn"}, CharacterRange{0x13460, 0x143FA, "Lo"},
    CharacterRange{0x16100, 0x1611D, "Lo"}, CharacterRange{0x1611E, 0x16129, "Mn"},
    CharacterRange{0x1612A, 0x1612C, "Mc"}, CharacterRange{0x1612D, 0x1612F, "Mn"},
    CharacterRange{0x16130, 0x16139, "Nd"}, CharacterRange{0x16D40, 0x16D42, "Lm"},
    CharacterRange{0x16D43, 0x16D6A, "Lo"}, CharacterRange{0x16D6B, 0x16D6C, "Lm"},
    CharacterRange{0x16D6D, 0x16D6F, "Po"}, CharacterRange{0x16D70, 0x16D79, "Nd"},
    CharacterRange{0x18CFF, 0x18CFF, "Lo"}, CharacterRange{0x1B132, 0x1B132, "Lo"},
    CharacterRange{0x1B155, 0x1B155, "Lo"}, CharacterRange{0x1CC00, 0x1CCEF, "So"},
    CharacterRange{0x1CCF0, 0x1CCF9, "Nd"}, CharacterRange{0x1CD00, 0x1CEB3, "So"},
    CharacterRange{0x1D2C0, 0x1D2D3, "No"}, CharacterRange{0x1DF25, 0x1DF2A, "Ll"},
    CharacterRange{0x1E030, 0x1E06D, "Lm"}, CharacterRange{0x1E08F, 0x1E08F, "Mn"},
    CharacterRange{0x1E4D0, 0x1E4EA, "Lo"}, CharacterRange{0x1E4EB, 0x1E4EB, "Lm"},
    CharacterRange{0x1E4EC, 0x1E4EF, "Mn"}, CharacterRange{0x1E4F0, 0x1E4F9, "Nd"},
    CharacterRange{0x1E5D0, 0x1E5ED, "Lo"}, CharacterRange{0x1E5EE, 0x1E5EF, "Mn"},
    CharacterRange{0x1E5F0, 0x1E5F0, "Lo"}, CharacterRange{0x1E5F1, 0x1E5FA, "Nd"},
    CharacterRange{0x1E5FF, 0x1E5FF, "Po"}, CharacterRange{0x1F6DC, 0x1F6DC, "So"},
    CharacterRange{0x1F774, 0x1F776, "So"}, CharacterRange{0x1F77B, 0x1F77F, "So"},
    CharacterRange{0x1F7D9, 0x1F7D9, "So"}, CharacterRange{0x1F8B2, 0x1F8BB, "So"},
    CharacterRange{0x1F8C0, 0x1F8C1, "So"}, CharacterRange{0x1FA75, 0x1FA77, "So"},
    CharacterRange{0x1FA87, 0x1FA89, "So"}, CharacterRange{0x1FA8F, 0x1FA8F, "So"},
    CharacterRange{0x1FAAD, 0x1FAAF, "So"}, CharacterRange{0x1FABB, 0x1FABF, "So"},
    CharacterRange{0x1FAC6, 0x1FAC6, "So"}, CharacterRange{0x1FACE, 0x1FACF, "So"},
    CharacterRange{0x1FADA, 0x1FADC, "So"}, CharacterRange{0x1FADF, 0x1FADF, "So"},
    CharacterRange{0x1FAE8, 0x1FAE9, "So"}, CharacterRange{0x1FAF7, 0x1FAF8, "So"},
    CharacterRange{0x1FBCB, 0x1FBEF, "So"}, CharacterRange{0x2B739, 0x2B739, "Lo"},
    CharacterRange{0x2EBF0, 0x2EE5D, "Lo"}, CharacterRange{0x31350, 0x323AF, "Lo"},
};

/// Characters that Unicode 10 to 15 gave a combining class or a composition, in ascending order:
/// utf8proc moves and composes them, and Hugging Face's library, with tables of Unicode 9 (the
/// package unicode-normalization-alignments 0.1.12), leaves them and whatever surrounds them.
inline constexpr std::array kUnmovedMarks = {
    CharacterRange{0x07FD, 0x07FD},   CharacterRange{0x0898, 0x089F},
    CharacterRange{0x08CA, 0x08D3},   CharacterRange{0x09FE, 0x09FE},
    CharacterRange{0x0C3C, 0x0C3C},   CharacterRange{0x0D3B, 0x0D3C},
    CharacterRange{0x0EBA, 0x0EBA},   CharacterRange{0x1715, 0x1715},
    CharacterRange{0x1ABF, 0x1ACE},   CharacterRange{0x1DF6, 0x1DFA},
    CharacterRange{0xA82C, 0xA82C},   CharacterRange{0x10D24, 0x10D27},
    CharacterRange{0x10EAB, 0x10EAC}, CharacterRange{0x10EFD, 0x10EFF},
    CharacterRange{0x10F46, 0x10F50}, CharacterRange{0x10F82, 0x10F85},
    CharacterRange{0x11070, 0x11070}, CharacterRange{0x1133B, 0x1133B},
    CharacterRange{0x1145E, 0x1145E}, CharacterRange{0x11839, 0x1183A},
    CharacterRange{0x11930, 0x11930}, CharacterRange{0x1193D, 0x1193E},
    CharacterRange{0x11943, 0x11943}, CharacterRange{0x119E0, 0x119E0},
    CharacterRange{0x11A34, 0x11A34}, CharacterRange{0x11A47, 0x11A47},
    CharacterRange{0x11A99, 0x11A99}, CharacterRange{0x11D42, 0x11D42},
    CharacterRange{0x11D44, 0x11D45}, CharacterRange{0x11D97, 0x11D97},
    CharacterRange{0x11F41, 0x11F42}, CharacterRange{0x16FF0, 0x16FF1},
    CharacterRange{0x1E08F, 0x1E08F}, CharacterRange{0x1E130, 0x1E136},
    CharacterRange{0x1E2AE, 0x1E2AE}, CharacterRange{0x1E2EC, 0x1E2EF},
    CharacterRange{0x1E4EC, 0x1E4EF},
};

}  // namespace braid
