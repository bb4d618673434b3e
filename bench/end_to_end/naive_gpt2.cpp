// The same training step as torch_gpt2_cpu.py in straight loops, as one would write it in C
// (compare llm.c's train_gpt2.c by A. Karpathy): no BLAS, no intrinsics, no blocking. Each thread
// takes a part of the batch through forward and backward with gradients of its own; gradients are
// then added, clipped and applied, each thread taking a part of the parameters. It shares no code
// with braid, so that it is also a second opinion on the losses. Prints one JSON line.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Options {
  int layers = 12;
  int width = 384;
  int heads = 6;
  int sequence = 256;
  int batch = 8;
  int vocabulary = 4096;
  int steps = 3;
  int threads = 0;          // 0: all cores
  std::string write_start;  // file for torch_gpt2_cpu.py --start
};

using Vector = std::vector<float>;

// ---- parameters, in the order of torch's Gpt2.parameters()

struct BlockOffsets {
  size_t norm1, norm1_bias, qkv, qkv_bias, proj, proj_bias, norm2, norm2_bias, up, up_bias, down,
      down_bias;
};

struct Parameters {
  size_t tokens = 0;     // [V, C], also the head
  size_t positions = 0;  // [T, C]
  std::vector<BlockOffsets> blocks;
  size_t norm = 0, norm_bias = 0;  // [C]
  size_t count = 0;
  std::vector<bool> is_matrix;  // by parameter element: weight decay applies

  explicit Parameters(const Options& o) {
    const size_t width = o.width;
    tokens = add(o.vocabulary * width, true);
    positions = add(o.sequence * width, true);
    for (int layer = 0; layer < o.layers; ++layer) {
      BlockOffsets b;
      b.norm1 = add(width, false);
      b.norm1_bias = add(width, false);
      b.qkv = add(3 * width * width, true);
      b.qkv_bias = add(3 * width, false);
      b.proj = add(width * width, true);
      b.proj_bias = add(width, false);
      b.norm2 = add(width, false);
      b.norm2_bias = add(width, false);
      b.up = add(4 * width * width, true);
      b.up_bias = add(4 * width, false);
      b.down = add(4 * width * width, true);
      b.down_bias = add(width, false);
      blocks.push_back(b);
    }
    norm = add(width, false);
    norm_bias = add(width, false);
  }

 private:
  size_t add(size_t elems, bool matrix) {
    const size_t at = count;
    count += elems;
    is_matrix.resize(count, matrix);
    return at;
  }
};

Vector initial_weights(const Options& o, const Parameters& p) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  Vector weights(p.count, 0.0f);
  for (size_t i = 0; i < p.count; ++i) {
    weights[i] = p.is_matrix[i] ? normal(random) : 0.0f;
  }
  const auto ones = [&](size_t at) { std::fill_n(weights.begin() + at, o.width, 1.0f); };
  for (const BlockOffsets& b : p.blocks) {
    ones(b.norm1);
    ones(b.norm2);
  }
  ones(p.norm);
  return weights;
}

// ---- operators: plain loops over N rows; backward functions add to their gradients

void linear(const float* x, const float* w, const float* bias, int rows, int in, int out,
            float* y) {
  for (int n = 0; n < rows; ++n) {
    for (int o = 0; o < out; ++o) {
      float sum = bias != nullptr ? bias[o] : 0.0f;
      for (int i = 0; i < in; ++i) {
        sum += x[n * in + i] * w[o * in + i];
      }
      y[size_t(n) * out + o] = sum;
    }
  }
}

void linear_backward(const float* x, const float* w, const float* dy, int rows, int in, int out,
                     float* dx, float* dw, float* dbias) {
  for (int n = 0; n < rows; ++n) {
    for (int o = 0; o < out; ++o) {
      const float d = dy[size_t(n) * out + o];
      for (int i = 0; i < in; ++i) {
        dx[n * in + i] += w[o * in + i] * d;
      }
    }
  }
  for (int o = 0; o < out; ++o) {
    for (int n = 0; n < rows; ++n) {
      const float d = dy[size_t(n) * out + o];
      if (dbias != nullptr) {
        dbias[o] += d;
      }
      for (int i = 0; i < in; ++i) {
        dw[o * in + i] += x[n * in + i] * d;
      }
    }
  }
}

struct RowStatistics {
  float mean, rstd;
};

RowStatistics statistics(const float* x, int width) {
  float mean = 0.0f, square = 0.0f;
  for (int i = 0; i < width; ++i) {
    mean += x[i];
  }
  mean /= width;
  for (int i = 0; i < width; ++i) {
    square += (x[i] - mean) * (x[i] - mean);
  }
  return {mean, 1.0f / std::sqrt(square / width + 1e-5f)};
}

void layernorm(const float* x, const float* w, const float* bias, int rows, int width, float* y) {
  for (int n = 0; n < rows; ++n) {
    const RowStatistics s = statistics(x + n * width, width);
    for (int i = 0; i < width; ++i) {
      y[n * width + i] = (x[n * width + i] - s.mean) * s.rstd * w[i] + bias[i];
    }
  }
}

void layernorm_backward(const float* x, const float* w, const float* dy, int rows, int width,
                        float* dx, float* dw, float* dbias) {
  for (int n = 0; n < rows; ++n) {
    const float* const xn = x + n * width;
    const float* const dyn = dy + n * width;
    const RowStatistics s = statistics(xn, width);
    float mean_d = 0.0f, mean_dx = 0.0f;
    for (int i = 0; i < width; ++i) {
      const float d = dyn[i] * w[i];
      mean_d += d;
      mean_dx += d * (xn[i] - s.mean) * s.rstd;
    }
    mean_d /= width;
    mean_dx /= width;
    for (int i = 0; i < width; ++i) {
      const float normalized = (xn[i] - s.mean) * s.rstd;
      dw[i] += dyn[i] * normalized;
      dbias[i] += dyn[i];
      dx[n * width + i] += (dyn[i] * w[i] - mean_d - normalized * mean_dx) * s.rstd;
    }
  }
}

constexpr float kGeluScale = 0.7978845608f;  // sqrt(2 / pi)

void gelu(const float* x, size_t count, float* y) {
  for (size_t i = 0; i < count; ++i) {
    y[i] = 0.5f * x[i] * (1.0f + std::tanh(kGeluScale * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
  }
}

void gelu_backward(const float* x, const float* dy, size_t count, float* dx) {
  for (size_t i = 0; i < count; ++i) {
    const float t = std::tanh(kGeluScale * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
    const float slope = kGeluScale * (1.0f + 3.0f * 0.044715f * x[i] * x[i]);
    dx[i] += dy[i] * (0.5f * (1.0f + t) + 0.5f * x[i] * (1.0f - t * t) * slope);
  }
}

/// qkv [B*T, 3C] -> probabilities [B, H, T, T], y [B*T, C].
void attention(const Options& o, int batch, const float* qkv, float* probabilities, float* y) {
  const int size = o.width / o.heads;
  const int row = 3 * o.width;
  const float scale = 1.0f / std::sqrt(float(size));
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < o.heads; ++h) {
      for (int t = 0; t < o.sequence; ++t) {
        const float* const q = qkv + size_t(b * o.sequence + t) * row + h * size;
        float* const p = probabilities + (size_t(b * o.heads + h) * o.sequence + t) * o.sequence;
        float max = -1e30f, sum = 0.0f;
        for (int s = 0; s <= t; ++s) {
          const float* const k = qkv + size_t(b * o.sequence + s) * row + o.width + h * size;
          float score = 0.0f;
          for (int i = 0; i < size; ++i) {
            score += q[i] * k[i];
          }
          p[s] = score * scale;
          max = std::max(max, p[s]);
        }
        for (int s = 0; s <= t; ++s) {
          p[s] = std::exp(p[s] - max);
          sum += p[s];
        }
        float* const out = y + size_t(b * o.sequence + t) * o.width + h * size;
        std::fill_n(out, size, 0.0f);
        for (int s = 0; s <= t; ++s) {
          p[s] /= sum;
          const float* const v = qkv + size_t(b * o.sequence + s) * row + 2 * o.width + h * size;
          for (int i = 0; i < size; ++i) {
            out[i] += p[s] * v[i];
          }
        }
      }
    }
  }
}

void attention_backward(const Options& o, int batch, const float* qkv, const float* probabilities,
                        const float* dy, float* dqkv) {
  const int size = o.width / o.heads;
  const int row = 3 * o.width;
  const float scale = 1.0f / std::sqrt(float(size));
  Vector dp(o.sequence);
  for (int b = 0; b < batch; ++b) {
    for (int h = 0; h < o.heads; ++h) {
      for (int t = 0; t < o.sequence; ++t) {
        const size_t at_t = size_t(b * o.sequence + t) * row + h * size;
        const float* const d = dy + size_t(b * o.sequence + t) * o.width + h * size;
        const float* const p =
            probabilities + (size_t(b * o.heads + h) * o.sequence + t) * o.sequence;
        float mean = 0.0f;
        for (int s = 0; s <= t; ++s) {
          const size_t v = size_t(b * o.sequence + s) * row + 2 * o.width + h * size;
          dp[s] = 0.0f;
          for (int i = 0; i < size; ++i) {
            dp[s] += d[i] * qkv[v + i];
            dqkv[v + i] += p[s] * d[i];
          }
          mean += p[s] * dp[s];
        }
        for (int s = 0; s <= t; ++s) {
          const size_t k = size_t(b * o.sequence + s) * row + o.width + h * size;
          const float ds = p[s] * (dp[s] - mean) * scale;
          for (int i = 0; i < size; ++i) {
            dqkv[at_t + i] += ds * qkv[k + i];
            dqkv[k + i] += ds * qkv[at_t + i];
          }
        }
      }
    }
  }
}

/// Adds the rows' losses; logits become loss_scale * (softmax - onehot).
double cross_entropy(float* logits, const int32_t* labels, int rows, int vocabulary,
                     float loss_scale) {
  double loss = 0.0;
  for (int n = 0; n < rows; ++n) {
    float* const row = logits + size_t(n) * vocabulary;
    const float max = *std::max_element(row, row + vocabulary);
    const float label_logit = row[labels[n]];
    float sum = 0.0f;
    for (int i = 0; i < vocabulary; ++i) {
      row[i] = std::exp(row[i] - max);
      sum += row[i];
    }
    loss += std::log(sum) + max - label_logit;
    for (int i = 0; i < vocabulary; ++i) {
      row[i] = loss_scale * (row[i] / sum - (i == labels[n] ? 1.0f : 0.0f));
    }
  }
  return loss;
}

// ---- the model, for one thread's part of the batch

struct BlockActivations {
  Vector x, norm1, qkv, probabilities, mixed, middle, norm2, up, gelu;
};

class Replica {
 public:
  Replica(const Options& options, const Parameters& parameters, int batch)
      : o_(options),
        p_(parameters),
        batch_(batch),
        rows_(batch * options.sequence),
        grads(parameters.count),
        blocks_(options.layers) {
    const size_t x_elems = size_t(rows_) * o_.width;
    for (BlockActivations& b : blocks_) {
      b.x.resize(x_elems);
      b.norm1.resize(x_elems);
      b.qkv.resize(3 * x_elems);
      b.probabilities.resize(size_t(batch) * o_.heads * o_.sequence * o_.sequence);
      b.mixed.resize(x_elems);
      b.middle.resize(x_elems);
      b.norm2.resize(x_elems);
      b.up.resize(4 * x_elems);
      b.gelu.resize(4 * x_elems);
    }
    last_.resize(x_elems);
    normed_.resize(x_elems);
    logits_.resize(size_t(rows_) * o_.vocabulary);
    inputs_.resize(rows_);
    labels_.resize(rows_);
  }

  /// tokens [batch, T + 1]. Returns the sum of the losses of its rows and sets `grads`.
  double forward_backward(const Vector& weights, const int32_t* tokens, float loss_scale) {
    for (int b = 0; b < batch_; ++b) {
      const int32_t* const from = tokens + b * (o_.sequence + 1);
      std::copy_n(from, o_.sequence, inputs_.begin() + b * o_.sequence);
      std::copy_n(from + 1, o_.sequence, labels_.begin() + b * o_.sequence);
    }
    std::fill(grads.begin(), grads.end(), 0.0f);
    forward(weights.data());
    const double loss =
        cross_entropy(logits_.data(), labels_.data(), rows_, o_.vocabulary, loss_scale);
    backward(weights.data());
    return loss;
  }

 private:
  const Options& o_;
  const Parameters& p_;
  int batch_;
  int rows_;

 public:
  Vector grads;

 private:
  std::vector<BlockActivations> blocks_;
  Vector last_, normed_, logits_;
  std::vector<int32_t> inputs_, labels_;

  void forward(const float* w) {
    const int width = o_.width;
    Vector& first = blocks_.front().x;
    for (int n = 0; n < rows_; ++n) {
      for (int i = 0; i < width; ++i) {
        first[n * width + i] = w[p_.tokens + size_t(inputs_[n]) * width + i] +
                               w[p_.positions + n % o_.sequence * width + i];
      }
    }
    for (int layer = 0; layer < o_.layers; ++layer) {
      forward_block(w, p_.blocks[layer], blocks_[layer],
                    layer + 1 < o_.layers ? blocks_[layer + 1].x : last_);
    }
    layernorm(last_.data(), w + p_.norm, w + p_.norm_bias, rows_, width, normed_.data());
    linear(normed_.data(), w + p_.tokens, nullptr, rows_, width, o_.vocabulary, logits_.data());
  }

  void forward_block(const float* w, const BlockOffsets& at, BlockActivations& a, Vector& out) {
    const int width = o_.width;
    layernorm(a.x.data(), w + at.norm1, w + at.norm1_bias, rows_, width, a.norm1.data());
    linear(a.norm1.data(), w + at.qkv, w + at.qkv_bias, rows_, width, 3 * width, a.qkv.data());
    attention(o_, batch_, a.qkv.data(), a.probabilities.data(), a.mixed.data());
    linear(a.mixed.data(), w + at.proj, w + at.proj_bias, rows_, width, width, a.middle.data());
    add(a.x, a.middle);
    layernorm(a.middle.data(), w + at.norm2, w + at.norm2_bias, rows_, width, a.norm2.data());
    linear(a.norm2.data(), w + at.up, w + at.up_bias, rows_, width, 4 * width, a.up.data());
    gelu(a.up.data(), a.up.size(), a.gelu.data());
    linear(a.gelu.data(), w + at.down, w + at.down_bias, rows_, 4 * width, width, out.data());
    add(a.middle, out);
  }

  void backward(const float* w) {
    const int width = o_.width;
    float* const g = grads.data();
    Vector d_normed(normed_.size()), d_x(last_.size());
    linear_backward(normed_.data(), w + p_.tokens, logits_.data(), rows_, width, o_.vocabulary,
                    d_normed.data(), g + p_.tokens, nullptr);
    layernorm_backward(last_.data(), w + p_.norm, d_normed.data(), rows_, width, d_x.data(),
                       g + p_.norm, g + p_.norm_bias);
    for (int layer = o_.layers - 1; layer >= 0; --layer) {
      backward_block(w, p_.blocks[layer], blocks_[layer], d_x);
    }
    for (int n = 0; n < rows_; ++n) {
      for (int i = 0; i < width; ++i) {
        g[p_.tokens + size_t(inputs_[n]) * width + i] += d_x[n * width + i];
        g[p_.positions + n % o_.sequence * width + i] += d_x[n * width + i];
      }
    }
  }

  /// d: gradient of the block's output in, of its input out.
  void backward_block(const float* w, const BlockOffsets& at, const BlockActivations& a,
                      Vector& d) {
    const int width = o_.width;
    float* const g = grads.data();
    Vector d_gelu(a.gelu.size()), d_up(a.up.size()), d_norm(a.x.size()), d_mixed(a.x.size());
    Vector d_qkv(a.qkv.size());
    linear_backward(a.gelu.data(), w + at.down, d.data(), rows_, 4 * width, width, d_gelu.data(),
                    g + at.down, g + at.down_bias);
    gelu_backward(a.up.data(), d_gelu.data(), a.up.size(), d_up.data());
    linear_backward(a.norm2.data(), w + at.up, d_up.data(), rows_, width, 4 * width, d_norm.data(),
                    g + at.up, g + at.up_bias);
    layernorm_backward(a.middle.data(), w + at.norm2, d_norm.data(), rows_, width, d.data(),
                       g + at.norm2, g + at.norm2_bias);
    linear_backward(a.mixed.data(), w + at.proj, d.data(), rows_, width, width, d_mixed.data(),
                    g + at.proj, g + at.proj_bias);
    attention_backward(o_, batch_, a.qkv.data(), a.probabilities.data(), d_mixed.data(),
                       d_qkv.data());
    std::fill(d_norm.begin(), d_norm.end(), 0.0f);
    linear_backward(a.norm1.data(), w + at.qkv, d_qkv.data(), rows_, width, 3 * width,
                    d_norm.data(), g + at.qkv, g + at.qkv_bias);
    layernorm_backward(a.x.data(), w + at.norm1, d_norm.data(), rows_, width, d.data(),
                       g + at.norm1, g + at.norm1_bias);
  }

  static void add(const Vector& x, Vector& y) {
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] += x[i];
    }
  }
};

// ---- the step

class Trainer {
 public:
  explicit Trainer(const Options& options)
      : o_(options),
        p_(options),
        threads_(std::min(options.batch, options.threads > 0
                                             ? options.threads
                                             : int(std::thread::hardware_concurrency()))),
        weights_(initial_weights(options, p_)),
        mean_(p_.count),
        square_(p_.count) {
    std::mt19937 random(2);
    std::uniform_int_distribution<int32_t> token(0, o_.vocabulary - 1);
    tokens_.resize(size_t(o_.batch) * (o_.sequence + 1));
    std::generate(tokens_.begin(), tokens_.end(), [&] { return token(random); });
    for (int i = 0; i < threads_; ++i) {
      replicas_.emplace_back(o_, p_, share(i + 1) - share(i));
    }
  }

  int threads() const { return threads_; }

  void write_start(const std::string& path) const {
    FILE* const file = std::fopen(path.c_str(), "wb");
    if (file == nullptr || std::fwrite(tokens_.data(), 4, tokens_.size(), file) != tokens_.size() ||
        std::fwrite(weights_.data(), 4, weights_.size(), file) != weights_.size() ||
        std::fclose(file) != 0) {
      throw std::runtime_error("cannot write " + path);
    }
  }

  double step() {
    std::vector<double> losses(threads_);
    const float loss_scale = 1.0f / float(o_.batch * o_.sequence);
    on_all_threads([&](int i) {
      losses[i] = replicas_[i].forward_backward(
          weights_, tokens_.data() + size_t(share(i)) * (o_.sequence + 1), loss_scale);
    });
    ++step_;
    apply_gradients();
    double loss = 0.0;
    for (const double part : losses) {
      loss += part;
    }
    return loss * loss_scale;
  }

 private:
  const Options o_;
  const Parameters p_;
  const int threads_;
  int step_ = 0;
  std::vector<int32_t> tokens_;  // [B, T + 1]
  Vector weights_, mean_, square_;
  std::vector<Replica> replicas_;

  int share(int thread) const { return o_.batch * thread / threads_; }

  void on_all_threads(const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < threads_; ++i) {
      threads.emplace_back(work, i);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  /// Sums the replicas' gradients into the first one's, clips their norm to 1, AdamW.
  void apply_gradients() {
    Vector& grads = replicas_[0].grads;
    std::vector<double> squares(threads_);
    const auto begin = [&](int thread) { return p_.count * thread / threads_; };
    on_all_threads([&](int thread) {
      for (size_t i = begin(thread); i < begin(thread + 1); ++i) {
        for (int r = 1; r < threads_; ++r) {
          grads[i] += replicas_[r].grads[i];
        }
        squares[thread] += double(grads[i]) * grads[i];
      }
    });
    double square = 0.0;
    for (const double part : squares) {
      square += part;
    }
    const float clip = float(std::min(1.0, 1.0 / (std::sqrt(square) + 1e-6)));
    on_all_threads([&](int thread) { adamw(begin(thread), begin(thread + 1), clip); });
  }

  void adamw(size_t begin, size_t end, float clip) {
    constexpr float kRate = 6e-4f, kBeta1 = 0.9f, kBeta2 = 0.95f, kDecay = 0.1f;
    const float correction1 = 1.0f - std::pow(kBeta1, float(step_));
    const float correction2 = 1.0f - std::pow(kBeta2, float(step_));
    for (size_t i = begin; i < end; ++i) {
      const float g = replicas_[0].grads[i] * clip;
      mean_[i] = kBeta1 * mean_[i] + (1.0f - kBeta1) * g;
      square_[i] = kBeta2 * square_[i] + (1.0f - kBeta2) * g * g;
      const float decay = p_.is_matrix[i] ? kDecay : 0.0f;
      weights_[i] -=
          kRate * (mean_[i] / correction1 / (std::sqrt(square_[i] / correction2) + 1e-8f) +
                   decay * weights_[i]);
    }
  }
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) {
      throw std::runtime_error(name + " needs a value");
    }
    const char* const value = argv[i + 1];
    int* const number = name == "--layers"       ? &o.layers
                        : name == "--width"      ? &o.width
                        : name == "--heads"      ? &o.heads
                        : name == "--sequence"   ? &o.sequence
                        : name == "--batch"      ? &o.batch
                        : name == "--vocabulary" ? &o.vocabulary
                        : name == "--steps"      ? &o.steps
                        : name == "--threads"    ? &o.threads
                                                 : nullptr;
    if (number != nullptr) {
      *number = std::atoi(value);
    } else if (name == "--write-start") {
      o.write_start = value;
    } else {
      throw std::runtime_error("unknown option " + name);
    }
  }
  return o;
}

void run(const Options& options) {
  Trainer trainer(options);
  if (!options.write_start.empty()) {
    trainer.write_start(options.write_start);
  }
  std::vector<double> losses, speeds;
  for (int step = 0; step < options.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    losses.push_back(trainer.step());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    speeds.push_back(options.batch * options.sequence / seconds.count());
  }
  std::sort(speeds.begin(), speeds.end());
  std::string first_losses;
  for (size_t i = 0; i < std::min<size_t>(3, losses.size()); ++i) {
    first_losses += (i > 0 ? ", " : "") + std::to_string(losses[i]);
  }
  std::printf(
      "{\"engine\": \"naive loops\", \"tokens_per_s\": %.1f, \"tokens_per_s_min\": %.1f, "
      "\"tokens_per_s_max\": %.1f, \"steps\": %d, \"threads\": %d, \"first_losses\": [%s]}\n",
      speeds[speeds.size() / 2], speeds.front(), speeds.back(), options.steps, trainer.threads(),
      first_losses.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "naive_gpt2: %s\n", error.what());
    return 1;
  }
}
