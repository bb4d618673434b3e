// Times of collectives that others published (bench/published/collectives.txt, outputs of
// nccl-tests) beside those of the analytic model. A fixed coin decides which tables prices may be
// fitted to; errors of both halves are printed apart, by size, by number of nodes and by table.
//   braid_bench_nccl                 errors
//   braid_bench_nccl --rows TEXT     each time, and its algorithm, of tables named with TEXT
//   braid_bench_nccl --check PAGE    fails unless the page has the errors as printed

#include <fmt/core.h>

#include <exception>
#include <map>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "programs/error_summary.h"
#include "programs/nccl_tables.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

struct Priced {
  const NcclTable* table = nullptr;
  NcclTime time;
  int num_nodes = 1;
  double us = 0;
  CommAlgorithm algorithm = CommAlgorithm::kRing;

  double error() const { return us / time.us - 1; }
};

std::vector<Priced> prices_of(const NcclTable& table) {
  const auto model = make_analytic_model(parse_cluster(table.cluster));
  const GroupPlacement place = place_neighbours(model->cluster(), model->cluster().num_devices);
  std::vector<Priced> prices;
  for (const NcclTime& time : table.times) {
    const CommChoice choice = cheapest_algorithm(*model, table.kind, place, time.bytes);
    prices.push_back({.table = &table,
                      .time = time,
                      .num_nodes = place.num_nodes,
                      .us = static_cast<double>(choice.cost.ns) * 1e-3,
                      .algorithm = choice.spec.algorithm});
  }
  return prices;
}

std::string size_of(const Priced& price) {
  const int64_t bytes = price.time.bytes;
  return bytes < kMiB          ? "1, 8 KiB to 512 KiB"
         : bytes < 64 * kMiB   ? "2, 1 MiB to 32 MiB"
         : bytes < 1024 * kMiB ? "3, 64 MiB to 512 MiB"
                               : "4, 1 GiB to 8 GiB";
}

std::string span_of(const Priced& price) {
  return price.num_nodes == 1   ? "1 node"
         : price.num_nodes == 2 ? "2 nodes"
         : price.num_nodes <= 8 ? "4 and 8 nodes"
                                : "more nodes";
}

std::vector<std::string> page_lines(const std::vector<Priced>& prices) {
  std::map<std::string, std::vector<double>> errors;
  for (const Priced& price : prices) {
    const std::string half = price.table->is_fitted ? "fitted" : "unfitted";
    for (const std::string& what :
         {"all " + half, half + ", size " + size_of(price), half + ", " + span_of(price),
          fmt::format("table {} ({}, {})", price.table->name, price.table->cluster, half)}) {
      errors[what].push_back(price.error());
    }
  }
  std::vector<std::string> lines{"| times | number | mean | median | worst | mean with sign |",
                                 "| --- | --- | --- | --- | --- | --- |"};
  for (const auto& [what, values] : errors) {
    lines.push_back(error_summary_line(what, values));
  }
  return lines;
}

void print_rows(const std::vector<Priced>& prices, const std::string& text) {
  for (const Priced& price : prices) {
    if (price.table->name.find(text) != std::string::npos) {
      fmt::print("| {} | {} | {:.1f} | {:.1f} | {:+.1f}% | {} |\n", price.table->name,
                 price.time.bytes, price.time.us, price.us, 100 * price.error(),
                 comm_algorithm_name(price.algorithm));
    }
  }
}

/// Whether the page has every line; prints those that it lacks.
bool has_lines(const std::string& page, const std::vector<std::string>& lines) {
  const std::string text = read_text_file(page, int64_t{1} << 24);
  bool has_all = true;
  for (const std::string& line : lines) {
    if (text.find(line + "\n") == std::string::npos) {
      fmt::print(stderr, "{} lacks: {}\n", page, line);
      has_all = false;
    }
  }
  return has_all;
}

int run(const std::string& option, const std::string& value) {
  const std::vector<NcclTable> tables = load_nccl_tables(BRAID_PUBLISHED_FOLDER "/collectives.txt");
  std::vector<Priced> prices;
  for (const NcclTable& table : tables) {
    const std::vector<Priced> more = prices_of(table);
    prices.insert(prices.end(), more.begin(), more.end());
  }
  if (option == "--rows") {
    print_rows(prices, value);
    return 0;
  }
  const std::vector<std::string> lines = page_lines(prices);
  for (const std::string& line : lines) {
    fmt::print("{}\n", line);
  }
  if (!option.empty() && option != "--check") {
    throw_config_error("unknown option {}; use --rows or --check", option);
  }
  return option.empty() || has_lines(value, lines) ? 0 : 1;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    return braid::run(argc > 2 ? argv[1] : "", argc > 2 ? argv[2] : "");
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
