#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/temp_folder.h"
#include "checkpoint/safetensors.h"

namespace braid {

/// Hugging Face models small enough to compute with loops, written from the definitions of
/// transformers (modeling_llama.py, modeling_qwen2.py, modeling_gpt2.py; of Ministral's windows
/// masking_utils.py) and nothing of ours.
class TinyHfModel {
 public:
  struct Tensor {
    Shape shape;
    std::vector<double> values;
  };

  int64_t layers = 2;
  int64_t width = 12;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_size = 6;
  int64_t ffn = 10;
  int64_t vocabulary = 11;
  double theta = 50.0;
  double epsilon = 1e-3;
  bool tied = false;
  bool qkv_bias = false;
  bool gpt2 = false;
  bool gemma = false;
  bool joined = false;  ///< files have query, key and value, and gate and up, in one tensor each
  std::vector<size_t> windows = {0, 0};  ///< by layer; 0: none
  std::string config;
  std::map<std::string, Tensor> tensors;

  static TinyHfModel make_llama(bool tied) {
    TinyHfModel model;
    model.tied = tied;
    model.config =
        R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 12,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 6, "intermediate_size": 10, "vocab_size": 11, "rms_norm_eps": 0.001,
            "rope_theta": 50.0, "rope_scaling": null, "max_position_embeddings": 16,
            "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": )" +
        std::string(tied ? "true" : "false") + "}";
    model.fill_llama();
    return model;
  }

  /// A layer with a window of three keys behind one without.
  static TinyHfModel make_ministral() {
    TinyHfModel model;
    model.windows = {0, 3};
    model.config =
        R"({"architectures": ["MinistralForCausalLM"], "model_type": "ministral",
            "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 10, "vocab_size": 11,
            "rms_norm_eps": 0.001, "rope_theta": 50.0, "max_position_embeddings": 16,
            "hidden_act": "silu", "sliding_window": 3,
            "layer_types": ["full_attention", "sliding_attention"]})";
    model.fill_llama();
    return model;
  }

  /// Windows of four keys. Its tensors are Llama's until they are written.
  static TinyHfModel make_phi3() {
    TinyHfModel model;
    model.windows = {4, 4};
    model.joined = true;
    model.head_size = 4;
    model.width = 16;
    model.config =
        R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 10, "vocab_size": 11, "rms_norm_eps": 0.001, "rope_theta": 50.0,
            "max_position_embeddings": 16, "original_max_position_embeddings": 16,
            "hidden_act": "silu", "sliding_window": 4, "tie_word_embeddings": false})";
    model.fill_llama();
    return model;
  }

  /// A layer with a window of three keys in front of one without, whose positions are half as far
  /// apart.
  static TinyHfModel make_gemma3() {
    TinyHfModel model;
    model.gemma = true;
    model.tied = true;
    model.windows = {3, 0};
    model.config =
        R"({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
            "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 10, "vocab_size": 11,
            "rms_norm_eps": 0.001, "rope_theta": 50.0, "rope_local_base_freq": 20.0,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "max_position_embeddings": 16, "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 9, "sliding_window": 3, "sliding_window_pattern": 2})";
    model.fill_llama();
    return model;
  }

  static TinyHfModel make_qwen2() {
    TinyHfModel model;
    model.qkv_bias = true;
    model.tied = true;
    model.head_size = 4;
    model.width = 16;
    model.config =
        R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 10, "vocab_size": 11, "rms_norm_eps": 0.001, "rope_theta": 50.0,
            "max_position_embeddings": 16, "use_sliding_window": false, "sliding_window": 8,
            "tie_word_embeddings": true, "attention_dropout": 0.0})";
    model.fill_llama();
    return model;
  }

  static TinyHfModel make_gpt2() {
    TinyHfModel model;
    model.gpt2 = true;
    model.tied = true;
    model.kv_heads = 4;
    model.head_size = 3;
    model.config =
        R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 12, "n_layer": 2,
            "n_head": 4, "n_inner": 10, "n_positions": 16, "n_ctx": 16, "vocab_size": 11,
            "layer_norm_epsilon": 0.001, "activation_function": "gelu_new", "attn_pdrop": 0.1})";
    model.fill_gpt2();
    return model;
  }

  /// config.json, and the tensors in one file or, with `num_files` > 1, in turns in so many and an
  /// index. Values are exact in every dtype.
  void write(const std::string& folder, DType dtype, size_t num_files = 1) const {
    if (joined) {
      TinyHfModel stored = *this;
      stored.join();
      return stored.write(folder, dtype, num_files);
    }
    std::filesystem::create_directories(folder);
    write_test_file(folder + "/config.json", config);
    std::vector<std::vector<std::string>> names(num_files);
    std::string map;
    size_t next = 0;
    for (const auto& [name, tensor] : tensors) {
      const size_t file = next++ % num_files;
      names[file].push_back(name);
      map += fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", name,
                         file_name(file, num_files));
    }
    for (size_t file = 0; file < num_files; ++file) {
      write_file(folder + "/" + file_name(file, num_files), names[file], dtype);
    }
    if (num_files > 1) {
      write_test_file(folder + "/model.safetensors.index.json",
                      "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
    }
  }

  static std::string file_name(size_t file, size_t num_files) {
    return num_files == 1 ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, num_files);
  }

  /// Logits after the last token.
  std::vector<double> logits(std::span<const int32_t> tokens) const {
    Matrix x;
    for (size_t t = 0; t < tokens.size(); ++t) {
      x.push_back(row(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
                      static_cast<size_t>(tokens[t])));
      if (gpt2) {
        add(x.back(), row("transformer.wpe.weight", t));
      }
      if (gemma) {
        for (double& value : x.back()) {
          value *= std::sqrt(static_cast<double>(width));
        }
      }
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      x = gpt2    ? gpt2_layer(std::move(x), fmt::format("transformer.h.{}.", layer))
          : gemma ? gemma_layer(std::move(x), fmt::format("model.layers.{}.", layer),
                                windows[static_cast<size_t>(layer)])
                  : llama_layer(std::move(x), fmt::format("model.layers.{}.", layer),
                                windows[static_cast<size_t>(layer)]);
    }
    const Vector last =
        gpt2 ? layernorm(x.back(), "transformer.ln_f") : rmsnorm(x.back(), "model.norm.weight");
    const std::string table = gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
    return linear(last, tied ? table : "lm_head.weight");
  }

 private:
  using Vector = std::vector<double>;
  using Matrix = std::vector<Vector>;

  /// Multiples of 1/256 below 1/2: exact in f32, bf16 and f16.
  void fill(const std::string& name, Shape shape, double offset = 0) {
    std::mt19937 random(static_cast<uint32_t>(tensors.size()) + 1);
    Tensor tensor{shape, {}};
    for (int64_t i = 0; i < shape.num_elems(); ++i) {
      const auto step = static_cast<int>(random() % 255) - 127;
      tensor.values.push_back(offset +
                              static_cast<double>(offset == 0 ? step : step / 4 * 2) / 256);
    }
    tensors[name] = std::move(tensor);
  }

  void fill_llama() {
    fill("model.embed_tokens.weight", {vocabulary, width});
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string at = fmt::format("model.layers.{}.", layer);
      fill(at + "input_layernorm.weight", {width}, 0.5);
      fill(at + "post_attention_layernorm.weight", {width}, 0.5);
      for (const auto& [name, count] : {std::pair{"q", heads}, {"k", kv_heads}, {"v", kv_heads}}) {
        fill(fmt::format("{}self_attn.{}_proj.weight", at, name), {count * head_size, width});
        if (qkv_bias) {
          fill(fmt::format("{}self_attn.{}_proj.bias", at, name), {count * head_size});
        }
      }
      fill(at + "self_attn.o_proj.weight", {width, heads * head_size});
      fill(at + "mlp.gate_proj.weight", {ffn, width});
      fill(at + "mlp.up_proj.weight", {ffn, width});
      fill(at + "mlp.down_proj.weight", {width, ffn});
      if (gemma) {
        for (const char* const name : {"pre_feedforward", "post_feedforward"}) {
          fill(fmt::format("{}{}_layernorm.weight", at, name), {width}, 0.5);
        }
        for (const char* const name : {"q_norm", "k_norm"}) {
          fill(fmt::format("{}self_attn.{}.weight", at, name), {head_size}, 0.5);
        }
      }
    }
    fill("model.norm.weight", {width}, 0.5);
    if (!tied) {
      fill("lm_head.weight", {vocabulary, width});
    }
  }

  /// Puts tensors one behind the other, as Phi-3's files have them.
  void join() {
    joined = false;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string at = fmt::format("model.layers.{}.", layer);
      join_rows(at + "self_attn.qkv_proj.weight",
                {at + "self_attn.q_proj.weight", at + "self_attn.k_proj.weight",
                 at + "self_attn.v_proj.weight"});
      join_rows(at + "mlp.gate_up_proj.weight",
                {at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"});
    }
  }

  void join_rows(const std::string& name, const std::vector<std::string>& parts) {
    Tensor whole{{0, width}, {}};
    for (const std::string& part : parts) {
      const Tensor& rows = tensors.at(part);
      whole.shape[0] += rows.shape[0];
      whole.values.insert(whole.values.end(), rows.values.begin(), rows.values.end());
      tensors.erase(part);
    }
    tensors[name] = std::move(whole);
  }

  void fill_gpt2() {
    fill("transformer.wte.weight", {vocabulary, width});
    fill("transformer.wpe.weight", {16, width});
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string at = fmt::format("transformer.h.{}.", layer);
      for (const char* const norm : {"ln_1", "ln_2"}) {
        fill(at + norm + ".weight", {width}, 0.5);
        fill(at + norm + ".bias", {width});
      }
      for (const auto& [name, in, out] : {std::tuple{"attn.c_attn", width, 3 * width},
                                          {"attn.c_proj", width, width},
                                          {"mlp.c_fc", width, ffn},
                                          {"mlp.c_proj", ffn, width}}) {
        fill(at + name + ".weight", {in, out});
        fill(at + name + ".bias", {out});
      }
    }
    fill("transformer.ln_f.weight", {width}, 0.5);
    fill("transformer.ln_f.bias", {width});
  }

  void write_file(const std::string& path, const std::vector<std::string>& names,
                  DType dtype) const {
    std::vector<TensorInfo> infos;
    for (const std::string& name : names) {
      infos.push_back({name, dtype, tensors.at(name).shape});
    }
    SafetensorsWriter writer(path, infos, {{"format", "pt"}});
    for (const std::string& name : names) {
      for (const double value : tensors.at(name).values) {
        const auto wide = static_cast<float>(value);
        if (dtype == DType::kF32) {
          writer.write(std::as_bytes(std::span(&wide, 1)));
        } else {
          const uint16_t bits = dtype == DType::kBF16 ? BFloat16(wide).bits : half_bits(wide);
          writer.write(std::as_bytes(std::span(&bits, 1)));
        }
      }
    }
    writer.finish();
  }

  /// Of a value that a normal half or zero is.
  static uint16_t half_bits(float value) {
    if (value == 0) {
      return 0;
    }
    const auto word = std::bit_cast<uint32_t>(value);
    const uint32_t exponent = ((word >> 23) & 0xFFu) - 112;
    return static_cast<uint16_t>(((word >> 16) & 0x8000u) | (exponent << 10) |
                                 ((word >> 13) & 0x3FFu));
  }

  Vector row(const std::string& name, size_t index) const {
    const Tensor& tensor = tensors.at(name);
    const auto columns = static_cast<size_t>(tensor.shape[1]);
    const auto begin = tensor.values.begin() + static_cast<std::ptrdiff_t>(index * columns);
    return {begin, begin + static_cast<std::ptrdiff_t>(columns)};
  }

  static void add(Vector& to, const Vector& from) {
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] += from[i];
    }
  }

  /// torch.nn.Linear: y = x W^T, W [out, in].
  Vector linear(const Vector& x, const std::string& weight) const {
    const auto out = static_cast<size_t>(tensors.at(weight).shape[0]);
    Vector y(out, 0.0);
    for (size_t o = 0; o < out; ++o) {
      const Vector w = row(weight, o);
      for (size_t i = 0; i < x.size(); ++i) {
        y[o] += x[i] * w[i];
      }
    }
    return y;
  }

  /// transformers' Conv1D: y = x W + b, W [in, out].
  Vector conv1d(const Vector& x, const std::string& name) const {
    Vector y = tensors.at(name + ".bias").values;
    for (size_t i = 0; i < x.size(); ++i) {
      const Vector w = row(name + ".weight", i);
      for (size_t o = 0; o < y.size(); ++o) {
        y[o] += x[i] * w[o];
      }
    }
    return y;
  }

  Vector rmsnorm(Vector x, const std::string& weight) const {
    double square = 0;
    for (const double value : x) {
      square += value * value;
    }
    const double scale = 1.0 / std::sqrt(square / static_cast<double>(x.size()) + epsilon);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] *= scale * (tensors.at(weight).values[i] + (gemma ? 1.0 : 0.0));
    }
    return x;
  }

  Vector layernorm(Vector x, const std::string& name) const {
    double mean = 0;
    for (const double value : x) {
      mean += value / static_cast<double>(x.size());
    }
    double variance = 0;
    for (const double value : x) {
      variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
    }
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] =
          (x[i] - mean) / std::sqrt(variance + epsilon) * tensors.at(name + ".weight").values[i] +
          tensors.at(name + ".bias").values[i];
    }
    return x;
  }

  /// apply_rotary_pos_emb with rotate_half: cat(-x[d/2:], x[:d/2]).
  void rotate(Vector& x, double position, double base) const {
    const auto size = static_cast<size_t>(head_size);
    for (size_t begin = 0; begin < x.size(); begin += size) {
      const Vector head(x.begin() + static_cast<std::ptrdiff_t>(begin),
                        x.begin() + static_cast<std::ptrdiff_t>(begin + size));
      for (size_t i = 0; i < size; ++i) {
        const size_t half = size / 2;
        const double frequency =
            1.0 / std::pow(base, static_cast<double>(2 * (i % half)) / static_cast<double>(size));
        const double angle = position * frequency;
        const double turned = i < half ? -head[i + half] : head[i - half];
        x[begin + i] = head[i] * std::cos(angle) + turned * std::sin(angle);
      }
    }
  }

  /// softmax(q k^T / sqrt(d)) v, causal; key head h / (heads / kv_heads) for query head h. With a
  /// window, keys s > t - window.
  Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v, size_t window = 0) const {
    const auto size = static_cast<size_t>(head_size);
    Matrix out;
    for (size_t t = 0; t < q.size(); ++t) {
      Vector mixed(q[t].size(), 0.0);
      for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
        const size_t kv = head / static_cast<size_t>(heads / kv_heads);
        Vector weights;
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (size_t i = 0; i < size; ++i) {
            score += q[t][head * size + i] * k[s][kv * size + i];
          }
          const bool sees = window == 0 || s + window > t;
          weights.push_back(sees ? std::exp(score / std::sqrt(static_cast<double>(size))) : 0.0);
          sum += weights.back();
        }
        for (size_t s = 0; s <= t; ++s) {
          for (size_t i = 0; i < size; ++i) {
            mixed[head * size + i] += weights[s] / sum * v[s][kv * size + i];
          }
        }
      }
      out.push_back(std::move(mixed));
    }
    return out;
  }

  Vector projected(const Vector& x, const std::string& name) const {
    Vector y = linear(x, name + ".weight");
    if (qkv_bias) {
      add(y, tensors.at(name + ".bias").values);
    }
    return y;
  }

  Matrix llama_layer(Matrix x, const std::string& at, size_t window) const {
    Matrix q;
    Matrix k;
    Matrix v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector normed = rmsnorm(x[t], at + "input_layernorm.weight");
      q.push_back(projected(normed, at + "self_attn.q_proj"));
      k.push_back(projected(normed, at + "self_attn.k_proj"));
      v.push_back(projected(normed, at + "self_attn.v_proj"));
      rotate(q.back(), static_cast<double>(t), theta);
      rotate(k.back(), static_cast<double>(t), theta);
    }
    const Matrix mixed = attention(q, k, v, window);
    for (size_t t = 0; t < x.size(); ++t) {
      add(x[t], linear(mixed[t], at + "self_attn.o_proj.weight"));
      const Vector normed = rmsnorm(x[t], at + "post_attention_layernorm.weight");
      Vector hidden = linear(normed, at + "mlp.gate_proj.weight");
      const Vector up = linear(normed, at + "mlp.up_proj.weight");
      for (size_t i = 0; i < hidden.size(); ++i) {
        hidden[i] = hidden[i] / (1.0 + std::exp(-hidden[i])) * up[i];
      }
      add(x[t], linear(hidden, at + "mlp.down_proj.weight"));
    }
    return x;
  }

  /// Each head alone, then its rotation; the scores are those of query_pre_attn_scalar = 9.
  Vector gemma_heads(Vector x, const std::string& norm, double position, double base) const {
    const auto size = static_cast<std::ptrdiff_t>(head_size);
    for (auto head = x.begin(); head != x.end(); head += size) {
      const Vector normed = rmsnorm({head, head + size}, norm);
      std::copy(normed.begin(), normed.end(), head);
    }
    rotate(x, position, base);
    return x;
  }

  Matrix gemma_layer(Matrix x, const std::string& at, size_t window) const {
    Matrix q;
    Matrix k;
    Matrix v;
    for (size_t t = 0; t < x.size(); ++t) {
      const double position = static_cast<double>(t) / (window > 0 ? 1.0 : 2.0);
      const double base = window > 0 ? 20.0 : theta;
      const Vector normed = rmsnorm(x[t], at + "input_layernorm.weight");
      q.push_back(gemma_heads(linear(normed, at + "self_attn.q_proj.weight"),
                              at + "self_attn.q_norm.weight", position, base));
      for (double& value : q.back()) {  // attention() divides by the root of a head's size
        value *= std::sqrt(static_cast<double>(head_size)) / 3.0;
      }
      k.push_back(gemma_heads(linear(normed, at + "self_attn.k_proj.weight"),
                              at + "self_attn.k_norm.weight", position, base));
      v.push_back(linear(normed, at + "self_attn.v_proj.weight"));
    }
    const Matrix mixed = attention(q, k, v, window);
    for (size_t t = 0; t < x.size(); ++t) {
      add(x[t], rmsnorm(linear(mixed[t], at + "self_attn.o_proj.weight"),
                        at + "post_attention_layernorm.weight"));
      const Vector normed = rmsnorm(x[t], at + "pre_feedforward_layernorm.weight");
      Vector hidden = linear(normed, at + "mlp.gate_proj.weight");
      const Vector up = linear(normed, at + "mlp.up_proj.weight");
      for (size_t i = 0; i < hidden.size(); ++i) {
        hidden[i] = gelu(hidden[i]) * up[i];
      }
      add(x[t], rmsnorm(linear(hidden, at + "mlp.down_proj.weight"),
                        at + "post_feedforward_layernorm.weight"));
    }
    return x;
  }

  /// gelu_new, which is gelu_pytorch_tanh.
  static double gelu(double h) {
    return 0.5 * h *
           (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (h + 0.044715 * h * h * h)));
  }

  Matrix gpt2_layer(Matrix x, const std::string& at) const {
    const auto size = static_cast<std::ptrdiff_t>(width);
    Matrix q;
    Matrix k;
    Matrix v;
    for (const Vector& token : x) {
      const Vector qkv = conv1d(layernorm(token, at + "ln_1"), at + "attn.c_attn");
      q.emplace_back(qkv.begin(), qkv.begin() + size);
      k.emplace_back(qkv.begin() + size, qkv.begin() + 2 * size);
      v.emplace_back(qkv.begin() + 2 * size, qkv.end());
    }
    const Matrix mixed = attention(q, k, v);
    for (size_t t = 0; t < x.size(); ++t) {
      add(x[t], conv1d(mixed[t], at + "attn.c_proj"));
      Vector hidden = conv1d(layernorm(x[t], at + "ln_2"), at + "mlp.c_fc");
      for (double& h : hidden) {
        h = gelu(h);
      }
      add(x[t], conv1d(hidden, at + "mlp.c_proj"));
    }
    return x;
  }
};

}  // namespace braid
