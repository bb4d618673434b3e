#include "programs/nccl_tables.h"

#include <charconv>
#include <set>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "programs/fitting_half.h"

namespace braid {
namespace {

constexpr int64_t kMaxTablesBytes = 1 << 20;

template <class T>
T value_of(const std::string& where, const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0) {
    throw_data_error("{}: {} is not a number above 0", where, quote(text, 60));
  }
  return value;
}

NcclTable table_of(const std::string& where, const std::vector<std::string>& fields) {
  if (fields.size() != 4) {
    throw_data_error("{}: {} fields instead of 4", where, fields.size());
  }
  const std::optional<CommKind> kind = parse_comm_kind(fields[2]);
  if (!kind) {
    throw_data_error("{}: unknown operation {}", where, quote(fields[2], 60));
  }
  return {.name = fields[0],
          .cluster = fields[1],
          .kind = *kind,
          .is_fitted = is_fitting_row(fields[0]),
          .times = {}};
}

NcclTime time_of(const std::string& where, const std::string& line) {
  const std::vector<std::string> numbers = split_text(line, ' ');
  if (numbers.size() != 2) {
    throw_data_error("{}: {} is not bytes and microseconds", where, quote(line, 60));
  }
  return {.bytes = value_of<int64_t>(where, numbers[0]), .us = value_of<double>(where, numbers[1])};
}

}  // namespace

std::vector<NcclTable> load_nccl_tables(const std::string& path) {
  std::vector<NcclTable> tables;
  std::set<std::string> names;
  const std::vector<std::string> lines = split_text(read_text_file(path, kMaxTablesBytes), '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string where = fmt::format("{}:{}", path, i + 1);
    if (lines[i].empty() || lines[i].front() == '#') {
      continue;
    }
    if (lines[i].find('|') != std::string::npos) {
      tables.push_back(table_of(where, split_text(lines[i], '|')));
      if (!names.insert(tables.back().name).second) {
        throw_data_error("{}: a second table {}", where, tables.back().name);
      }
    } else if (tables.empty()) {
      throw_data_error("{}: a time before the first table", where);
    } else {
      tables.back().times.push_back(time_of(where, lines[i]));
    }
  }
  return tables;
}

}  // namespace braid
