#include <algorithm>
#include <future>
#include <utility>

#include "base/checksum.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/state_file.h"

namespace braid {
namespace {

constexpr int64_t kMaxStateBytes = int64_t{64} << 20;
constexpr int64_t kMaxIndexBytes = int64_t{4} << 30;
constexpr size_t kMaxQuotedBytes = 80;

void check_file(const std::string& folder, const FileRecord& expected) {
  const std::string path = folder + "/" + expected.name;
  const PieceFile file(path);
  if (file.size_bytes() != expected.size_bytes) {
    throw_data_error("'{}' is damaged: it has {} bytes, expected {}", path, file.size_bytes(),
                     expected.size_bytes);
  }
  const std::string found = checksum_of(file);
  if (found != expected.checksum) {
    throw_data_error("'{}' is damaged: its XXH3 checksum is {}, expected {}", path, found,
                     expected.checksum);
  }
}

/// Checks each file on its own thread; throws the first error in the order of the list.
void check_files(const std::string& folder, std::span<const FileRecord> files) {
  std::vector<std::future<void>> checks;
  for (const FileRecord& file : files) {
    checks.push_back(std::async(std::launch::async, [&] { check_file(folder, file); }));
  }
  for (std::future<void>& check : checks) {
    check.wait();
  }
  for (std::future<void>& check : checks) {
    check.get();
  }
}

const FileRecord& record_of(std::span<const FileRecord> recorded, std::string_view name,
                            const std::string& state_path) {
  const auto record = std::find_if(recorded.begin(), recorded.end(),
                                   [&](const FileRecord& file) { return file.name == name; });
  if (record == recorded.end()) {
    throw_data_error("'{}' does not name the file {}", state_path, name);
  }
  return *record;
}

}  // namespace

LoadedCheckpoint::LoadedCheckpoint(const std::string& path, const Needs& needs) : path_(path) {
  const std::string state_path = fmt::format("{}/{}", path, kStateFile);
  StoredState stored = parse_state(read_text_file(state_path, kMaxStateBytes), state_path);
  state_ = std::move(stored.state);
  version_ = stored.version;
  if (stored.version == 1) {
    open_first_version(stored.files);
  } else {
    open(stored.files, needs);
  }
  for (const StoredTensor& tensor : index_.tensors) {
    by_name_.emplace(tensor.name, &tensor);
  }
}

void LoadedCheckpoint::open(std::span<const FileRecord> recorded, const Needs& needs) {
  const std::string state_path = fmt::format("{}/{}", path_, kStateFile);
  const std::string index_path = fmt::format("{}/{}", path_, kIndexFile);
  check_file(path_, record_of(recorded, kIndexFile, state_path));
  index_ = parse_index(read_text_file(index_path, kMaxIndexBytes), index_path);
  for (const std::string& file : index_.files) {
    files_.push_back(record_of(recorded, file, state_path));
  }
  std::vector<bool> needed(files_.size(), !needs);
  for (const StoredTensor& tensor : index_.tensors) {
    if (needs && needs(tensor.name)) {
      for (const StoredPiece& piece : tensor.pieces) {
        needed[piece.file] = true;
      }
    }
  }
  std::vector<FileRecord> checked;
  for (size_t file = 0; file < files_.size(); ++file) {
    if (needed[file]) {
      checked.push_back(files_[file]);
    }
  }
  check_files(path_, checked);
  for (size_t file = 0; file < files_.size(); ++file) {
    opened_.push_back(needed[file] ? std::make_unique<SafetensorsFile>(
                                         fmt::format("{}/{}", path_, files_[file].name))
                                   : nullptr);
    check_pieces(file);
  }
}

/// A file must contain what the index lists for it. (A tensor that the index lacks does no harm.)
void LoadedCheckpoint::check_pieces(size_t file) const {
  if (opened_[file] == nullptr) {
    return;
  }
  for (const StoredTensor& tensor : index_.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      if (piece.file == file) {
        opened_[file]->entry(piece_name(tensor.name, tensor.shape, piece.range), tensor.dtype,
                             piece_shape(tensor.shape, piece.range));
      }
    }
  }
}

/// Version 1 had no index, but two files of whole tensors.
void LoadedCheckpoint::open_first_version(std::span<const FileRecord> recorded) {
  const std::string state_path = fmt::format("{}/{}", path_, kStateFile);
  index_.files = {"model.safetensors", "optimizer.safetensors"};
  for (const std::string& file : index_.files) {
    files_.push_back(record_of(recorded, file, state_path));
  }
  check_files(path_, files_);
  for (size_t file = 0; file < files_.size(); ++file) {
    opened_.push_back(
        std::make_unique<SafetensorsFile>(fmt::format("{}/{}", path_, files_[file].name)));
    for (const TensorEntry& entry : opened_.back()->tensors()) {
      index_.tensors.push_back(
          {entry.name, entry.dtype, entry.shape, {{file, whole_range(entry.shape)}}});
    }
  }
}

const StoredTensor* LoadedCheckpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const StoredTensor& LoadedCheckpoint::tensor(std::string_view name, DType dtype,
                                             const Shape& shape) const {
  const StoredTensor* const found = find(name);
  if (found == nullptr) {
    throw_data_error("'{}' has no tensor {}", path_, quote(name, kMaxQuotedBytes));
  }
  if (found->dtype != dtype || found->shape != shape) {
    throw_data_error("tensor {} of '{}' is {}{}, expected {}{}", quote(name, kMaxQuotedBytes),
                     path_, dtype_name(found->dtype), to_string(found->shape), dtype_name(dtype),
                     to_string(shape));
  }
  return *found;
}

void LoadedCheckpoint::read(const StoredTensor& tensor, int64_t begin,
                            std::span<std::byte> out) const {
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(tensor.dtype));
  const auto out_bytes = static_cast<int64_t>(out.size());
  check(out_bytes % elem_bytes == 0 && begin >= 0 &&
            begin + out_bytes / elem_bytes <= tensor.shape.num_elems(),
        "{} bytes from element {} are outside tensor {} of {}", out_bytes, begin, tensor.name,
        to_string(tensor.shape));
  const int64_t end = begin + out_bytes / elem_bytes;
  const int64_t pitch = row_elems(tensor.shape);
  for (const StoredPiece& piece : tensor.pieces) {
    if (piece.range.begin >= end) {
      return;
    }
    if (piece.range.end(pitch) <= begin) {
      continue;
    }
    const SafetensorsFile* const file = opened_[piece.file].get();
    check(file != nullptr, "tensor {} was not asked for", tensor.name);
    const TensorEntry& entry = file->entry(piece_name(tensor.name, tensor.shape, piece.range));
    int64_t first = 0;  // of the elements of the piece that are needed: they have no gaps
    int64_t num_elems = 0;
    for_each_overlap(piece.range, pitch, begin, end, [&](int64_t of_piece, int64_t, int64_t count) {
      first = num_elems == 0 ? of_piece : first;
      num_elems += count;
    });
    SequentialReader reader = file->reader(entry, first * elem_bytes, num_elems * elem_bytes);
    for_each_overlap(
        piece.range, pitch, begin, end, [&](int64_t, int64_t of_tensor, int64_t count) {
          reader.read(out.subspan(static_cast<size_t>((of_tensor - begin) * elem_bytes),
                                  static_cast<size_t>(count * elem_bytes)));
        });
  }
}

}  // namespace braid
