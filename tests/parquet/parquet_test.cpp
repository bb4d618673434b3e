#include <arrow/api.h>
#include <arrow/io/file.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "data/documents.h"
#include "data/indexed_dataset.h"
#include "data/input_paths.h"
#include "data/parquet_file.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;

using Texts = std::vector<std::optional<std::string>>;

template <class Builder>
std::shared_ptr<arrow::Array> array_of(Builder&& builder, const Texts& texts) {
  for (const auto& text : texts) {
    PARQUET_THROW_NOT_OK(text ? builder.Append(*text) : builder.AppendNull());
  }
  return builder.Finish().ValueOrDie();
}

std::shared_ptr<arrow::Array> strings(const Texts& texts) {
  return array_of(arrow::StringBuilder(), texts);
}

struct WriteOptions {
  arrow::Compression::type compression = arrow::Compression::UNCOMPRESSED;
  bool dictionary = true;
  bool version_2_pages = false;
  bool checksums = false;
  int64_t rows_per_group = int64_t{1} << 20;
};

struct Column {
  std::string name;
  std::shared_ptr<arrow::Array> values;
};

void write_parquet(const std::string& path, const std::vector<Column>& columns,
                   const WriteOptions& options = WriteOptions()) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const Column& column : columns) {
    fields.push_back(arrow::field(column.name, column.values->type()));
    arrays.push_back(column.values);
  }
  parquet::WriterProperties::Builder properties;
  properties.compression(options.compression);
  properties.data_pagesize(4096);  // several pages of small files
  options.dictionary ? properties.enable_dictionary() : properties.disable_dictionary();
  if (options.version_2_pages) {
    properties.data_page_version(parquet::ParquetDataPageVersion::V2);
  }
  if (options.checksums) {
    properties.enable_page_checksum();
  }
  const auto file = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  PARQUET_THROW_NOT_OK(parquet::arrow::WriteTable(
      *arrow::Table::Make(arrow::schema(fields), arrays), arrow::default_memory_pool(), file,
      options.rows_per_group, properties.build(),
      parquet::ArrowWriterProperties::Builder().store_schema()->build()));
  PARQUET_THROW_NOT_OK(file->Close());
}

/// Texts of different sizes, some of them empty, null, and some of them twice.
Texts sample_texts(size_t count) {
  Texts texts;
  for (size_t i = 0; i < count; ++i) {
    if (i % 11 == 3) {
      texts.emplace_back(std::nullopt);
    } else {
      const size_t kind = i % 13;
      std::string text = fmt::format("document {}\nhas text \xC3\xA9 ", i < 400 ? i : kind);
      for (size_t k = 0; k < i % 37; ++k) {
        text += fmt::format("word{} ", k * i % 101);
      }
      texts.emplace_back(kind == 5 ? "" : text);
    }
  }
  return texts;
}

std::vector<std::string> without_nulls(const Texts& texts) {
  std::vector<std::string> all;
  for (const auto& text : texts) {
    all.push_back(text.value_or(""));
  }
  return all;
}

class ParquetTest : public ::testing::Test {
 protected:
  std::vector<std::string> read(const DocumentOptions& options = DocumentOptions()) {
    std::vector<std::string> texts;
    int64_t last_end_bytes = 0;
    int64_t file_bytes = 0;
    for_each_document(path_, options, [&](const Document& document) {
      texts.emplace_back(document.text);
      EXPECT_EQ(document.line, std::ssize(texts));
      EXPECT_GE(document.end_bytes, last_end_bytes);
      last_end_bytes = document.end_bytes;
      file_bytes = document.file_bytes;
    });
    EXPECT_EQ(last_end_bytes, file_bytes);
    EXPECT_EQ(file_bytes, static_cast<int64_t>(std::filesystem::file_size(path_)));
    return texts;
  }
  std::string refusal(const DocumentOptions& options = DocumentOptions()) {
    return message_of<DataError>([&] { read(options); });
  }
  std::string bytes_of(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempFolder folder_;
  const std::string path_ = folder_ / "a.parquet";
};

struct Form {
  std::string name;
  WriteOptions options;
};

class ParquetFormTest : public ParquetTest, public ::testing::WithParamInterface<Form> {};

INSTANTIATE_TEST_SUITE_P(
    Forms, ParquetFormTest,
    ::testing::Values(
        Form{"plain", {.dictionary = false}}, Form{"dictionary", {}},
        Form{"groups", {.rows_per_group = 100}}, Form{"single_rows", {.rows_per_group = 1}},
        Form{"snappy", {.compression = arrow::Compression::SNAPPY, .rows_per_group = 300}},
        Form{"zstd", {.compression = arrow::Compression::ZSTD, .version_2_pages = true}},
        Form{"gzip", {.compression = arrow::Compression::GZIP, .dictionary = false}},
        Form{"lz4", {.compression = arrow::Compression::LZ4}},
        Form{"brotli", {.compression = arrow::Compression::BROTLI, .checksums = true}}),
    [](const auto& form) { return form.param.name; });

TEST_P(ParquetFormTest, ReadsAllRowsInOrder) {
  const Texts texts = sample_texts(700);
  write_parquet(path_, {{"id", strings(Texts(700, "x"))}, {"text", strings(texts)}},
                GetParam().options);
  EXPECT_THAT(read(), ElementsAreArray(without_nulls(texts)));
}

TEST_F(ParquetTest, ReadsAllTypesOfText) {
  const Texts texts = {"a", std::nullopt, "b \xE2\x82\xAC", "", "a"};
  const std::vector<std::shared_ptr<arrow::Array>> arrays = {
      array_of(arrow::LargeStringBuilder(), texts), array_of(arrow::BinaryBuilder(), texts),
      array_of(arrow::LargeBinaryBuilder(), texts), array_of(arrow::StringViewBuilder(), texts),
      array_of(arrow::StringDictionaryBuilder(), texts)};
  for (const auto& array : arrays) {
    write_parquet(path_, {{"text", array}});
    EXPECT_THAT(read(), ElementsAreArray(without_nulls(texts))) << array->type()->ToString();
  }
}

TEST_F(ParquetTest, ReadsTheColumnThatIsAskedFor) {
  write_parquet(path_, {{"text", strings({"a", "b"})}, {"content", strings({"c", "d"})}});
  DocumentOptions options;
  options.json_key = "content";
  EXPECT_THAT(read(options), ElementsAre("c", "d"));
  options.json_key = "body";
  EXPECT_THAT(refusal(options),
              HasSubstr("no column \"body\"; its columns are \"text\", \"content\""));
}

TEST_F(ParquetTest, RefusesColumnsWithoutTexts) {
  arrow::Int64Builder numbers;
  PARQUET_THROW_NOT_OK(numbers.AppendValues({1, 2}));
  write_parquet(path_, {{"text", numbers.Finish().ValueOrDie()}});
  EXPECT_THAT(refusal(), HasSubstr("column \"text\" has values of type int64, not texts"));
}

TEST_F(ParquetTest, RefusesFilesWithoutRows) {
  write_parquet(path_, {{"text", strings({})}});
  EXPECT_THAT(refusal(), HasSubstr("a.parquet' has no documents: it has no rows"));
}

TEST_F(ParquetTest, RefusesOrReplacesBytesThatAreNotUtf8) {
  write_parquet(path_, {{"text", strings({"good", "b\xFF"})}});
  EXPECT_THAT(refusal(), HasSubstr("a.parquet' row 2 is not UTF-8 text: byte 0xFF at position 1"));
  DocumentOptions options;
  options.text.replaces_invalid = true;
  EXPECT_THAT(read(options), ElementsAre("good", "b\xEF\xBF\xBD"));
}

/// Each byte of a file damaged once: either it is noticed, in one line, or no text is another.
TEST_F(ParquetTest, NoticesDamagedPages) {
  const Texts texts = sample_texts(40);
  write_parquet(path_, {{"text", strings(texts)}},
                {.compression = arrow::Compression::ZSTD, .checksums = true});
  const std::string good = bytes_of("a.parquet");
  int noticed = 0;
  for (size_t i = 0; i < good.size(); i += 3) {
    std::string bad = good;
    bad[i] = static_cast<char>(~static_cast<unsigned char>(bad[i]));
    write_test_file(path_, bad);
    try {
      EXPECT_EQ(read().size(), texts.size()) << i;
    } catch (const DataError& error) {
      ++noticed;
      EXPECT_THAT(error.what(), AllOf(HasSubstr(path_), Not(HasSubstr("\n")))) << i;
    }
  }
  EXPECT_GT(noticed, static_cast<int>(good.size()) / 6);
}

TEST_F(ParquetTest, NoticesFilesThatAreCutOff) {
  write_parquet(path_, {{"text", strings(sample_texts(40))}});
  const std::string good = bytes_of("a.parquet");
  for (const size_t size : {size_t{0}, size_t{4}, size_t{11}, good.size() / 2, good.size() - 1}) {
    write_test_file(path_, good.substr(0, size));
    EXPECT_THAT(refusal(), HasSubstr("a.parquet' cannot be read as Parquet: ")) << size;
  }
  write_test_file(path_, "{\"text\": \"no Parquet\"}\n");
  EXPECT_THAT(refusal(), HasSubstr("cannot be read as Parquet"));
}

TEST_F(ParquetTest, KnowsAboutHowMuchTextThereIs) {
  write_parquet(path_, {{"text", strings({std::string(5000, 'a'), std::string(3000, 'b')})},
                        {"other", strings({std::string(9000, 'c'), "d"})}});
  const ParquetFile file(path_, {.text = "text", .json = {}});
  EXPECT_EQ(file.num_rows(), 2);
  EXPECT_GT(file.encoded_bytes(), 8000);
  EXPECT_LT(file.encoded_bytes(), 8500);
}

/// Messages of two rows: one of two, and one of one with a mark that JSON escapes.
std::shared_ptr<arrow::Array> messages() {
  auto role = std::make_shared<arrow::StringBuilder>();
  auto content = std::make_shared<arrow::StringBuilder>();
  auto score = std::make_shared<arrow::DoubleBuilder>();
  const auto type =
      arrow::struct_({arrow::field("role", arrow::utf8()), arrow::field("content", arrow::utf8()),
                      arrow::field("score", arrow::float64())});
  auto message = std::make_shared<arrow::StructBuilder>(
      type, arrow::default_memory_pool(),
      std::vector<std::shared_ptr<arrow::ArrayBuilder>>{role, content, score});
  arrow::ListBuilder list(arrow::default_memory_pool(), message);
  const auto add = [&](const std::string& who, const std::string& text) {
    PARQUET_THROW_NOT_OK(message->Append());
    PARQUET_THROW_NOT_OK(role->Append(who));
    PARQUET_THROW_NOT_OK(content->Append(text));
    PARQUET_THROW_NOT_OK(score->AppendNull());
  };
  PARQUET_THROW_NOT_OK(list.Append());
  add("user", "Hi");
  add("assistant", "Hello.");
  PARQUET_THROW_NOT_OK(list.Append());
  add("assistant", "a \"b\"\\\n\x01\xC3\xA9");
  return list.Finish().ValueOrDie();
}

TEST_F(ParquetTest, MakesJsonOfConversations) {
  write_parquet(path_, {{"messages", messages()}, {"prompt", strings({std::nullopt, "p"})}});
  DocumentOptions options;
  options.conversations = true;
  EXPECT_THAT(read(options),
              ElementsAre(R"({"messages":[{"role":"user","content":"Hi","score":null},)"
                          R"({"role":"assistant","content":"Hello.","score":null}]})",
                          R"({"messages":[{"role":"assistant","content":"a \"b\"\\\u000a\u0001é",)"
                          R"("score":null}],"prompt":"p"})"));
  write_parquet(path_, {{"text", strings({"a"})}});
  EXPECT_THAT(refusal(options), HasSubstr("none of the columns \"messages\", \"prompt\""));
}

/// Tokenizes inputs and returns the bytes of all files that this makes.
std::string tokenized(const TempFolder& folder, const std::vector<std::string>& inputs,
                      TokenizeOptions options) {
  const auto tokenizer = load_tokenizer("bytes");
  options.inputs = inputs;
  options.output_prefix = folder / "out";
  tokenize_files(*tokenizer, options);
  std::string all;
  for (const char* const suffix : {".bin", ".idx", ".mask.bin", ".mask.idx"}) {
    std::ifstream file(options.output_prefix + suffix, std::ios::binary);
    all.append(std::istreambuf_iterator<char>(file), {});
  }
  return all;
}

std::string json_of(const std::string& text) {
  std::string json = text;
  for (size_t at = 0; (at = json.find('\n', at)) != std::string::npos;) {
    json.replace(at, 1, "\\n");
  }
  return "{\"text\": \"" + json + "\"}\n";
}

TEST_F(ParquetTest, GivesTheTokensOfJsonLinesForAnyNumberOfThreads) {
  std::filesystem::create_directories(folder_ / "d");
  std::string lines;
  for (int part = 0; part < 3; ++part) {
    Texts texts = sample_texts(500 + 100 * static_cast<size_t>(part));
    write_parquet(folder_ / fmt::format("d/part-{}.parquet", part), {{"text", strings(texts)}},
                  {.compression = arrow::Compression::SNAPPY, .rows_per_group = 64});
    for (const std::string& text : without_nulls(texts)) {
      lines += json_of(text);
    }
  }
  write_test_file(folder_ / "same.jsonl", lines);
  const std::string expected = tokenized(folder_, {folder_ / "same.jsonl"}, {.threads = 1});
  for (const int64_t threads : {1, 3, 8}) {
    const auto folder = expand_inputs(std::vector<std::string>{folder_ / "d"}, "--input");
    EXPECT_EQ(tokenized(folder_, folder, {.threads = threads}), expected) << threads;
    const auto files =
        expand_inputs(std::vector<std::string>{folder_ / "d/part-?.parquet"}, "--input");
    EXPECT_EQ(tokenized(folder_, files, {.threads = threads}), expected) << threads;
  }
}

TEST_F(ParquetTest, GivesTheTokensAndMaskOfChats) {
  write_parquet(path_, {{"messages", messages()}});
  write_test_file(folder_ / "same.jsonl",
                  R"({"messages":[{"role":"user","content":"Hi"},)"
                  R"({"role":"assistant","content":"Hello."}]})"
                  "\n"
                  R"({"messages":[{"role":"assistant","content":"a \"b\"\\\u000a\u0001é"}]})"
                  "\n");
  const TokenizeOptions options{.threads = 2, .chat = ChatTemplate::kChatml};
  EXPECT_EQ(tokenized(folder_, {path_}, options),
            tokenized(folder_, {folder_ / "same.jsonl"}, options));
}

TEST_F(ParquetTest, NamesTheRowOfABadConversation) {
  write_parquet(path_,
                {{"prompt", strings({"a", "b"})}, {"completion", strings({"c", std::nullopt})}});
  EXPECT_THAT(message_of<DataError>([&] {
                tokenized(folder_, {path_}, {.threads = 1, .chat = ChatTemplate::kPlain});
              }),
              HasSubstr("a.parquet' row 2: \"completion\" must be a string"));
}

TEST_F(ParquetTest, IsDescribed) {
  EXPECT_THAT(describe_parquet(), HasSubstr("Apache Arrow "));
}

}  // namespace
}  // namespace braid
