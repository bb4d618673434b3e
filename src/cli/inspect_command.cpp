#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/safetensors.h"
#include "cli/commands.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer.h"
#include "model/families.h"
#include "model/model_spec.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

std::string describe_tensors(const SafetensorsFile& file) {
  std::string text = fmt::format("{}: {} tensors, {}\n", file.path(), file.tensors().size(),
                                 format_bytes(file.size_bytes()));
  for (const TensorEntry& tensor : file.tensors()) {
    text += fmt::format("  {:<44} {:>5} {}\n", tensor.name, dtype_name(tensor.dtype),
                        to_string(tensor.shape));
  }
  return text;
}

std::string describe_stored(const StoredTensor& tensor, const TensorIndex& index) {
  std::string text = fmt::format("  {:<44} {:>5} {}", tensor.name, dtype_name(tensor.dtype),
                                 to_string(tensor.shape));
  if (index.files.size() > 1) {
    std::vector<std::string> places;
    for (const StoredPiece& piece : tensor.pieces) {
      places.push_back(index.files[piece.file]);
    }
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    text += tensor.pieces.size() == 1
                ? fmt::format("  {}", places.front())
                : fmt::format(
                      "  {} pieces in {}", tensor.pieces.size(),
                      places.size() == 1 ? places.front() : fmt::format("{} files", places.size()));
  }
  return text + "\n";
}

std::string describe_contents(const LoadedCheckpoint& checkpoint) {
  const TensorIndex& index = checkpoint.index();
  std::string text;
  for (const FileRecord& file : checkpoint.files()) {
    text += fmt::format("file     {}, {}\n", file.name, format_bytes(file.size_bytes));
  }
  text += fmt::format("tensors  {}\n", index.tensors.size());
  for (const StoredTensor& tensor : index.tensors) {
    text += describe_stored(tensor, index);
  }
  return text;
}

/// What else the trainer recorded, such as the identity of the run.
std::string describe_extra(const CheckpointState& state) {
  constexpr size_t kShownBytes = 200;
  std::string text;
  for (const auto& [name, value] : state.extra) {
    text += fmt::format("{}: {}\n", printable(name, kShownBytes), printable(value, kShownBytes));
  }
  return text;
}

std::string describe_checkpoint(const std::string& path) {
  const LoadedCheckpoint checkpoint(path);
  const CheckpointState& state = checkpoint.state();
  return fmt::format(
             "{}: all files have the recorded size and checksum\nmodel    {}\nstep     {}\nsamples "
             " {}\n"
             "tokens   {}\nseed     {}\n",
             path, state.model, state.step, state.consumed_samples, state.consumed_tokens,
             state.seed) +
         describe_extra(state) + describe_contents(checkpoint);
}

std::string describe_dataset(const std::string& path) {
  const IndexedDataset dataset(path);
  dataset.verify_tokens();
  const SequenceIndex& index = dataset.index();
  int32_t longest = 0;
  for (int64_t i = 0; i < index.num_sequences(); ++i) {
    longest = std::max(longest, index.length(i));
  }
  return fmt::format(
      "{}.bin and .idx: {} documents, {} sequences, {} tokens of type {}, longest sequence {}; "
      "{}\n",
      dataset.prefix(), index.num_documents(), index.num_sequences(), index.num_tokens(),
      token_type_name(index.token_type()), longest,
      index.checksums() ? "both have the recorded checksum" : "no checksums are recorded");
}

std::string describe_presets() {
  std::string text;
  for (const ModelPreset& preset : model_presets()) {
    text += fmt::format("{:<14} {}\n", preset.name, describe_model(preset.spec));
  }
  return text;
}

std::string inspect(const std::string& path) {
  if (path == "presets") {
    return describe_presets();
  }
  if (const auto checkpoint = checkpoint_at(path)) {
    return describe_checkpoint(*checkpoint);
  }
  if (path.ends_with(".safetensors")) {
    return describe_tensors(SafetensorsFile(path));
  }
  if (path.ends_with(".model") || path.ends_with("tokenizer.json")) {
    return fmt::format("{}: {}\n", path, load_tokenizer(path)->describe());
  }
  const std::string prefix = dataset_prefix(path);
  if (fs::exists(prefix + ".idx") || fs::exists(prefix + ".bin")) {
    return describe_dataset(path);
  }
  if (!fs::exists(path)) {
    throw_data_error("'{}' does not exist, and neither does a pair '{}.bin' and '{}.idx'", path,
                     prefix, prefix);
  }
  throw_data_error(
      "'{}' is not a run folder, checkpoint, .safetensors, .model, tokenizer.json or .bin/.idx "
      "file{}",
      path, hint_of_import(path));
}

}  // namespace

void add_inspect_command(CLI::App& app, const Console& console) {
  const auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Describe and check a checkpoint, token file, tensor file, tokenizer or run");
  command
      ->add_option("path", *path,
                   "Run folder, checkpoint, .safetensors, .model, tokenizer.json, PREFIX of "
                   ".bin/.idx, or \"presets\" "
                   "for the model presets")
      ->required()
      ->type_name("PATH");
  command->footer(
      "Checks checksums, sizes and every index entry; damage is an error with exit status 1.\n\n  "
      "braid inspect runs/quickstart\n  braid inspect presets");
  command->callback([path, &console] { console.print(inspect(*path)); });
}

}  // namespace braid
