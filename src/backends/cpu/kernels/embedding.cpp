#include "ops/embedding.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr int64_t kElsewhere = -1;  // another rank has the token's row

int64_t row_of_token(const TableRows& rows, const int32_t* tokens, int64_t position) {
  const int64_t token = tokens[position];
  if (token < 0 || token >= rows.vocabulary) [[unlikely]] {
    throw_device_error("token {} at position {} is outside of the vocabulary [0, {})", token,
                       position, rows.vocabulary);
  }
  const int64_t row = token - rows.begin;
  return row >= 0 && row < rows.count ? row : kElsewhere;
}

template <class T>
void add_row(const T* a, const T* b, int64_t width, T* sum) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    store(sum, c, static_cast<Wide<T>>(a[c]) + static_cast<Wide<T>>(b[c]));
  }
}

/// row + position; one of them may be null and counts as zeros.
template <class T>
void write_row(const T* row, const T* position, int64_t width, T* out) {
  if (row != nullptr && position != nullptr) {
    add_row(row, position, width, out);
  } else if (row != nullptr || position != nullptr) {
    std::copy_n(row != nullptr ? row : position, width, out);
  } else {
    std::fill_n(out, width, T(0.0f));
  }
}

template <class T>
void accumulate_row(const T* from, int64_t width, Wide<T>* to) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    to[c] += static_cast<Wide<T>>(from[c]);
  }
}

template <class T>
CpuKernel embedding_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const TableRows table_rows(attributes.vocabulary, attributes.vocabulary_begin,
                             spec.operands[1].shape[0]);
  const int64_t width = spec.operands[1].shape[1];
  const bool adds_positions = attributes.has_positions && attributes.adds_positions;
  const bool documents = attributes.documents.documents;
  const size_t out_operand = spec.operands.size() - 1;
  return {.run = [=](const KernelArgs& args) {
    const auto* const tokens = args.data<const int32_t>(0);
    const T* const table = args.data<const T>(1);
    const T* const positions = adds_positions ? args.data<const T>(2) : nullptr;
    const auto* const starts = documents ? args.data<const int32_t>(3) : nullptr;
    const auto position_of = [&](int64_t n) {
      const int64_t position = attributes.at.of(n % attributes.sequence);
      return documents ? position - starts[n] : position;
    };
    T* const out = args.data<T>(out_operand);
    run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t row = row_of_token(table_rows, tokens, n);
        write_row(row == kElsewhere ? nullptr : table + row * width,
                  positions == nullptr ? nullptr : positions + position_of(n) * width, width,
                  out + n * width);
      }
    });
  }};
}

// The columns are split over workers: each sums its columns of all rows in ascending order, so that
// no two write to one place and the order does not depend on the workers.
template <class T>
CpuKernel embedding_wgrad_kernel(const OpSpec& spec) {
  using W = Wide<T>;
  const auto attributes = attributes_of<EmbeddingWgradAttributes>(spec);
  const bool accumulate = attributes.accumulate;
  const int64_t rows = spec.operands[0].shape[0];
  const TableRows table_rows(attributes.vocabulary, attributes.vocabulary_begin,
                             spec.operands[2].shape[0]);
  const int64_t width = spec.operands[2].shape[1];
  const int64_t touched_rows = accumulate ? rows : rows + table_rows.count;
  const int64_t grain = (row_grain(touched_rows) + 63) / 64 * 64;  // whole cache lines
  return {.run = [=](const KernelArgs& args) {
    const auto* const tokens = args.data<const int32_t>(0);
    const T* const d_out = args.data<const T>(1);
    W* const d_table = args.data<W>(2);
    run_pieces(args.workers, width, grain, [&](int, int64_t begin, int64_t end) {
      for (int64_t v = 0; v < (accumulate ? 0 : table_rows.count); ++v) {
        std::fill_n(d_table + v * width + begin, end - begin, W(0));
      }
      for (int64_t n = 0; n < rows; ++n) {
        const int64_t row = row_of_token(table_rows, tokens, n);
        if (row != kElsewhere) {
          accumulate_row(d_out + n * width + begin, end - begin, d_table + row * width + begin);
        }
      }
    });
  }};
}

/// Rows by token, and those of one token in ascending order.
void sort_by_token(const TableRows& table_rows, const int32_t* tokens, std::span<int32_t> rows) {
  std::iota(rows.begin(), rows.end(), 0);
  for (const int32_t row : rows) {
    row_of_token(table_rows, tokens, row);  // throws if there is none
  }
  std::sort(rows.begin(), rows.end(), [tokens](int32_t a, int32_t b) {
    return tokens[a] != tokens[b] ? tokens[a] < tokens[b] : a < b;
  });
}

/// Into bf16: the rows of a token are summed in fp32 before the sum is rounded. Workers share the
/// columns, in the order above.
CpuKernel narrow_embedding_wgrad_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingWgradAttributes>(spec);
  const bool accumulate = attributes.accumulate;
  const int64_t rows = spec.operands[0].shape[0];
  const TableRows table_rows(attributes.vocabulary, attributes.vocabulary_begin,
                             spec.operands[2].shape[0]);
  const int64_t width = spec.operands[2].shape[1];
  const int64_t touched_rows = accumulate ? rows : rows + table_rows.count;
  const int64_t grain = (row_grain(touched_rows) + 63) / 64 * 64;
  const size_t order_bytes = align_scratch(sizeof(int32_t) * static_cast<size_t>(rows));
  return {.run =
              [=](const KernelArgs& args) {
                const auto* const tokens = args.data<const int32_t>(0);
                const auto* const d_out = args.data<const BFloat16>(1);
                auto* const d_table = args.data<BFloat16>(2);
                auto* const order = reinterpret_cast<int32_t*>(args.scratch.data());
                auto* const sums = reinterpret_cast<float*>(args.scratch.data() + order_bytes);
                sort_by_token(table_rows, tokens, {order, static_cast<size_t>(rows)});
                run_pieces(args.workers, width, grain, [&](int, int64_t begin, int64_t end) {
                  for (int64_t v = 0; v < (accumulate ? 0 : table_rows.count); ++v) {
                    std::fill_n(d_table + v * width + begin, end - begin, BFloat16(0.0F));
                  }
                  for (int64_t i = 0; i < rows;) {
                    const int32_t token = tokens[order[i]];
                    const int64_t row = row_of_token(table_rows, tokens, order[i]);
                    std::fill(sums + begin, sums + end, 0.0F);
                    for (; i < rows && tokens[order[i]] == token; ++i) {
                      accumulate_row(d_out + order[i] * width + begin, end - begin, sums + begin);
                    }
                    for (int64_t c = begin; row != kElsewhere && c < end; ++c) {
                      BFloat16* const to = d_table + row * width;
                      store(to, c, static_cast<float>(to[c]) + sums[c]);
                    }
                  }
                });
              },
          .scratch_bytes = order_bytes + align_scratch(sizeof(float) * static_cast<size_t>(width))};
}

/// With documents: each worker adds the rows at its positions, in their order.
template <class T>
CpuKernel document_position_wgrad_kernel(const OpSpec& spec) {
  using W = Wide<T>;
  const auto attributes = attributes_of<PositionEmbeddingWgradAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t num_positions = spec.operands[2].shape[0];
  const int64_t width = spec.operands[2].shape[1];
  return {.run = [=](const KernelArgs& args) {
    const T* const d_out = args.data<const T>(0);
    const auto* const starts = args.data<const int32_t>(1);
    W* const d_positions = args.data<W>(2);
    run_pieces(args.workers, num_positions, row_grain(width), [&](int, int64_t begin, int64_t end) {
      if (!attributes.accumulate) {
        std::fill(d_positions + begin * width, d_positions + end * width, W(0));
      }
      for (int64_t n = 0; n < rows; ++n) {
        const int64_t position = attributes.at.of(n % attributes.sequence) - starts[n];
        if (begin <= position && position < end) {
          accumulate_row(d_out + n * width, width, d_positions + position * width);
        }
      }
    });
  }};
}

template <class T>
CpuKernel position_embedding_wgrad_kernel(const OpSpec& spec) {
  using W = Wide<T>;
  const auto attributes = attributes_of<PositionEmbeddingWgradAttributes>(spec);
  const int64_t sequence = attributes.sequence;
  const TokenPositions at = attributes.at;
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t num_positions = spec.operands[1].shape[0];
  const int64_t width = spec.operands[1].shape[1];
  return {.run = [=](const KernelArgs& args) {
    const T* const d_out = args.data<const T>(0);
    W* const d_positions = args.data<W>(1);
    const auto add_tokens = [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        for (int64_t n = token; n < rows; n += sequence) {
          accumulate_row(d_out + n * width, width, d_positions + at.of(token) * width);
        }
      }
    };
    // The positions are split over workers, so that only one worker writes each row.
    run_pieces(args.workers, num_positions, row_grain(width), [&](int, int64_t begin, int64_t end) {
      if (!attributes.accumulate) {
        std::fill(d_positions + begin * width, d_positions + end * width, W(0));
      }
      const auto first_token = [&](int64_t position) {
        return std::clamp<int64_t>(position - at.first_begin, 0, at.split);
      };
      const auto second_token = [&](int64_t position) {
        return at.split + std::clamp<int64_t>(position - at.second_begin, 0, sequence - at.split);
      };
      add_tokens(first_token(begin), first_token(end));
      add_tokens(second_token(begin), second_token(end));
    });
  }};
}

}  // namespace

CpuKernel make_embedding(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_dtype(spec, 1, [&]<class T>() { return embedding_kernel<T>(spec); });
}

CpuKernel make_embedding_wgrad(const OpSpec& spec, int /*num_workers*/) {
  return spec.operands[2].dtype == DType::kBF16
             ? narrow_embedding_wgrad_kernel(spec)
             : dispatch_dtype(spec, 1, [&]<class T>() { return embedding_wgrad_kernel<T>(spec); });
}

CpuKernel make_position_embedding_wgrad(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_dtype(spec, 0, [&]<class T>() {
    return attributes_of<PositionEmbeddingWgradAttributes>(spec).documents.documents
               ? document_position_wgrad_kernel<T>(spec)
               : position_embedding_wgrad_kernel<T>(spec);
  });
}

}  // namespace braid
