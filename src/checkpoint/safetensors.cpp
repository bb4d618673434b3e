#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"

namespace braid {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kHeaderAlignmentBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kMaxQuotedBytes = 80;

std::optional<int64_t> product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
}

/// Bytes of a tensor; nullopt if they do not fit into 64 bits.
std::optional<int64_t> tensor_bytes(DType dtype, const Shape& shape) {
  std::optional<int64_t> bytes = static_cast<int64_t>(dtype_bytes(dtype));
  bool is_empty = false;
  for (const int64_t dim : shape) {
    is_empty = is_empty || dim == 0;
    // A zero must not hide an overflow of the other dimensions: other readers may multiply in
    // another order.
    bytes = bytes ? product(*bytes, std::max<int64_t>(dim, 1)) : std::nullopt;
  }
  return bytes && is_empty ? 0 : bytes;
}

/// Parses one header; every error is a DataError that names the file.
class HeaderReader {
 public:
  using Read = std::function<void(int64_t, std::span<std::byte>)>;

  explicit HeaderReader(std::string_view path) : path_(path) {}

  SafetensorsHeader read(int64_t file_bytes, const Read& read) const {
    const std::string text = header_text(file_bytes, read);
    const json root = parse_json(text, fmt::format("the header of '{}'", path_));
    SafetensorsHeader header;
    header.data_begin_bytes = static_cast<int64_t>(sizeof(uint64_t) + text.size());
    for (const auto& [name, value] : root.items()) {
      if (name == kMetadataKey) {
        header.metadata = read_metadata(value);
      } else {
        header.tensors.push_back(read_tensor(name, value));
      }
    }
    check_cover(header.tensors, file_bytes - header.data_begin_bytes);
    return header;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data_error("'{}' is not a valid safetensors file: {}", path_,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  std::string header_text(int64_t file_bytes, const Read& read) const {
    constexpr auto kSizeBytes = int64_t{sizeof(uint64_t)};
    if (file_bytes < kSizeBytes) {
      fail("it has {} bytes, but the size of the header alone takes {}", file_bytes, kSizeBytes);
    }
    uint64_t size = 0;
    read(0, std::as_writable_bytes(std::span(&size, 1)));
    const auto limit = static_cast<uint64_t>(std::min(file_bytes - kSizeBytes, kMaxHeaderBytes));
    if (size > limit) {
      fail("its header claims {} bytes, but at most {} are possible", size, limit);
    }
    std::string text(size, '\0');
    read(kSizeBytes, std::as_writable_bytes(std::span(text)));
    if (!text.starts_with('{')) {
      fail("its header does not begin with '{{'");
    }
    return text;
  }

  std::map<std::string, std::string> read_metadata(const json& value) const {
    std::map<std::string, std::string> metadata;
    if (!value.is_object()) {
      fail("{} is not an object", kMetadataKey);
    }
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        fail("{} {} is not a string", kMetadataKey, quote(key, kMaxQuotedBytes));
      }
      metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
  }

  TensorEntry read_tensor(const std::string& name, const json& value) const {
    const std::string title = quote(name, kMaxQuotedBytes);
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
        !value.contains("shape") || !value.contains("data_offsets")) {
      fail("tensor {} does not have exactly dtype, shape and data_offsets", title);
    }
    TensorEntry entry;
    entry.name = name;
    entry.dtype = read_dtype(title, value["dtype"]);
    entry.shape = read_shape(title, value["shape"]);
    const std::vector<int64_t> offsets =
        read_numbers("data_offsets of tensor " + title, value["data_offsets"]);
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      fail("data_offsets of tensor {} are not a begin and a later end", title);
    }
    entry.begin_bytes = offsets[0];
    entry.end_bytes = offsets[1];
    const std::optional<int64_t> bytes = tensor_bytes(entry.dtype, entry.shape);
    if (!bytes) {
      fail("tensor {} of shape {} is too large", title, to_string(entry.shape));
    }
    if (entry.end_bytes - entry.begin_bytes != *bytes) {
      fail("tensor {} of {}{} takes {} bytes, but its data_offsets say {}", title,
           dtype_name(entry.dtype), to_string(entry.shape), *bytes,
           entry.end_bytes - entry.begin_bytes);
    }
    return entry;
  }

  DType read_dtype(const std::string& title, const json& value) const {
    if (value.is_string()) {
      if (const auto known = parse_safetensors_name(value.get_ref<const std::string&>())) {
        return *known;
      }
    }
    fail("tensor {} has a dtype that is not supported: {}", title,
         value.is_string() ? quote(value.get_ref<const std::string&>(), kMaxQuotedBytes)
                           : "not a text");
  }

  Shape read_shape(const std::string& title, const json& value) const {
    const std::vector<int64_t> dims = read_numbers("shape of tensor " + title, value);
    if (dims.size() > static_cast<size_t>(Shape::kMaxRank)) {
      fail("tensor {} has {} dimensions, at most {} are supported", title, dims.size(),
           Shape::kMaxRank);
    }
    Shape shape;
    for (const int64_t dim : dims) {
      shape.push_back(dim);
    }
    return shape;
  }

  std::vector<int64_t> read_numbers(const std::string& what, const json& value) const {
    std::vector<int64_t> numbers;
    const bool is_good =
        value.is_array() && std::all_of(value.begin(), value.end(), [](const json& number) {
          return number.is_number_unsigned() &&
                 number.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
        });
    if (!is_good) {
      fail("{} is not a list of sizes", what);
    }
    for (const json& number : value) {
      numbers.push_back(number.get<int64_t>());
    }
    return numbers;
  }

  /// Sorts the tensors by position and checks that they fill `data_bytes` exactly.
  void check_cover(std::vector<TensorEntry>& tensors, int64_t data_bytes) const {
    std::stable_sort(
        tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
          return std::pair(a.begin_bytes, a.end_bytes) < std::pair(b.begin_bytes, b.end_bytes);
        });
    int64_t reached = 0;
    for (const TensorEntry& tensor : tensors) {
      if (tensor.begin_bytes != reached) {
        fail("tensor {} begins at byte {}, but the one before it ends at {}",
             quote(tensor.name, kMaxQuotedBytes), tensor.begin_bytes, reached);
      }
      reached = tensor.end_bytes;
    }
    if (reached != data_bytes) {
      fail("its tensors take {} bytes, but the file has {}", reached, data_bytes);
    }
  }

  std::string_view path_;
};

/// A new member at the end. (`json[name]` would look at all members before it.)
void append(nlohmann::ordered_json& object, std::string_view name, nlohmann::ordered_json value) {
  object.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(name, std::move(value));
}

std::string header_json(std::span<const TensorInfo> tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    append(root, kMetadataKey, metadata);
  }
  int64_t begin_bytes = 0;
  std::set<std::string_view> taken = {kMetadataKey};
  for (const TensorInfo& tensor : tensors) {
    check(taken.insert(tensor.name).second, "tensor name {} is taken", tensor.name);
    const std::optional<int64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    check(bytes.has_value(), "tensor {} of shape {} is too large", tensor.name,
          to_string(tensor.shape));
    append(root, tensor.name,
           {{"dtype", safetensors_name(tensor.dtype)},
            {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
            {"data_offsets", {begin_bytes, begin_bytes + *bytes}}});
    begin_bytes += *bytes;
  }
  std::string text = root.dump();
  text.resize(
      (text.size() + kHeaderAlignmentBytes - 1) / kHeaderAlignmentBytes * kHeaderAlignmentBytes,
      ' ');
  return text;
}

}  // namespace

SafetensorsHeader read_safetensors_header(
    int64_t file_bytes, const std::function<void(int64_t, std::span<std::byte>)>& read,
    std::string_view path) {
  return HeaderReader(path).read(file_bytes, read);
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path),
      header_(read_safetensors_header(
          file_.size_bytes(),
          [&](int64_t offset_bytes, std::span<std::byte> out) { file_.read_at(offset_bytes, out); },
          path)) {
  for (size_t index = 0; index < header_.tensors.size(); ++index) {
    by_name_.emplace(header_.tensors[index].name, index);
  }
}

const TensorEntry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    throw_data_error("'{}' has no tensor {}", path(), quote(name, kMaxQuotedBytes));
  }
  return header_.tensors[found->second];
}

const TensorEntry& SafetensorsFile::entry(std::string_view name, DType dtype,
                                          const Shape& shape) const {
  const TensorEntry& found = entry(name);
  if (found.dtype != dtype || found.shape != shape) {
    throw_data_error("tensor {} of '{}' is {}{}, expected {}{}", quote(name, kMaxQuotedBytes),
                     path(), dtype_name(found.dtype), to_string(found.shape), dtype_name(dtype),
                     to_string(shape));
  }
  return found;
}

SequentialReader SafetensorsFile::reader(const TensorEntry& entry, int64_t begin_bytes,
                                         int64_t num_bytes) const {
  check(begin_bytes >= 0 && begin_bytes + num_bytes <= entry.end_bytes - entry.begin_bytes,
        "{} bytes from byte {} are outside tensor {} of {}", num_bytes, begin_bytes, entry.name,
        to_string(entry.shape));
  const int64_t begin = header_.data_begin_bytes + entry.begin_bytes + begin_bytes;
  return {file_, begin, begin + num_bytes};
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  const std::string header = header_json(tensors, metadata);
  const uint64_t size = header.size();
  for (const TensorInfo& tensor : tensors) {
    missing_bytes_ += *tensor_bytes(tensor.dtype, tensor.shape);
  }
  for (const auto bytes : {std::as_bytes(std::span(&size, 1)), std::as_bytes(std::span(header))}) {
    checksum_.add(bytes);
    file_.write(bytes);
  }
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  missing_bytes_ -= static_cast<int64_t>(bytes.size());
  check(missing_bytes_ >= 0, "{} bytes more than announced for '{}'", -missing_bytes_,
        file_.path());
  checksum_.add(bytes);
  file_.write(bytes);
}

void SafetensorsWriter::finish() {
  check(missing_bytes_ == 0, "{} bytes fewer than announced for '{}'", missing_bytes_,
        file_.path());
  file_.commit();
}

}  // namespace braid
