#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace braid {

/// The files that a user means by `inputs`, in this order: a file is itself; a folder is all text,
/// JSONL and Parquet files in it and below (*.txt, *.jsonl, *.json, each also with .gz, .zst or
/// .zstd, and *.parquet), by path; any other name with "*", "?" or "[" is a pattern, as the shell
/// reads it, and its files by path. Hidden files and folders are left out of folders. Throws
/// ConfigError, naming `option`, for an input without a file, and for a file that is named twice.
std::vector<std::string> expand_inputs(std::span<const std::string> inputs,
                                       const std::string& option);

/// "corpus.txt", or "3 files".
std::string describe_inputs(std::span<const std::string> paths);

/// Their sizes on the disk, in sum. Throws DataError if one is no file.
int64_t total_bytes(std::span<const std::string> paths);

}  // namespace braid
