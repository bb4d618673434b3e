#include "cli/cli_fixture.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class TokenizeCommand : public Cli {
 protected:
  TokenizeCommand() { write("corpus.txt", small_corpus()); }
};

TEST_F(TokenizeCommand, TrainsATokenizerAndUsesIt) {
  EXPECT_EQ(output_of({"tokenize", "--input", "corpus.txt", "--output", "tok", "--train-vocabulary",
                       "300"}),
            "wrote tok.model: 300 pieces of corpus.txt\n");
  EXPECT_EQ(output_of({"inspect", "tok.model"}), "tok.model: SentencePiece model of 300 pieces\n");
  EXPECT_THAT(
      output_of({"tokenize", "--input", "corpus.txt", "--output", "c", "--tokenizer", "tok.model"}),
      MatchesRegex("wrote c.bin and .idx: 300 documents, [0-9.]+K tokens, [0-9.]+ bytes per "
                   "token, [0-9.]+[KM]? tokens/s\n"));
  EXPECT_THAT(output_of({"inspect", "c"}),
              MatchesRegex("c.bin and .idx: 300 documents, 300 sequences, [0-9]+ tokens of type "
                           "u16, longest sequence [0-9]+; both have the recorded checksum\n"));
}

TEST_F(TokenizeCommand, BytesNeedNoModel) {
  output_of({"tokenize", "--input", "corpus.txt", "--output", "c", "--tokenizer", "bytes",
             "--document-break", "none", "--no-eod"});
  const auto bytes = std::to_string(small_corpus().size());
  EXPECT_THAT(output_of({"inspect", "c.idx"}), HasSubstr("1 documents, 1 sequences, " + bytes));
}

TEST_F(TokenizeCommand, ReadsSeveralFilesFoldersAndPatterns) {
  write("d/b.jsonl", "{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
  write("d/a.txt", "one\n");
  write("c.txt", "four\n");
  for (const Words& inputs :
       {Words{"d", "c.txt"}, Words{"d/*", "c.tx?"}, Words{"d/a.txt", "d/b.jsonl", "c.txt"}}) {
    Words words{"tokenize", "--output", "c", "--tokenizer", "bytes", "--overwrite", "--input"};
    words.insert(words.end(), inputs.begin(), inputs.end());
    output_of(words);
    EXPECT_THAT(output_of({"inspect", "c"}), HasSubstr("4 documents, 4 sequences, 19 tokens"));
  }
  EXPECT_THAT(error_of({"tokenize", "--output", "x", "--tokenizer", "bytes", "--input", "e*"}, 2),
              StartsWith("--input e*: no file has a name like this"));
}

TEST_F(TokenizeCommand, OverwritesNothingUnlessAsked) {
  Words tokens{"tokenize", "--input", "corpus.txt", "--output", "c", "--tokenizer", "bytes"};
  Words model{"tokenize", "--input", "corpus.txt", "--output", "tok", "--train-vocabulary", "300"};
  for (Words* const words : {&tokens, &model}) {
    output_of(*words);
    write("corpus.txt", small_corpus() + "\nmore\n");
    const std::string before = exists("tok.model") ? read("tok.model") : read("c.idx");
    EXPECT_THAT(error_of(*words, 2), HasSubstr("' exists; give another prefix, or --overwrite"));
    EXPECT_EQ(exists("tok.model") ? read("tok.model") : read("c.idx"), before);
    words->push_back("--overwrite");
    EXPECT_THAT(output_of(*words), StartsWith("wrote "));
  }
}

TEST_F(TokenizeCommand, RefusesInOneLine) {
  const Words common{"tokenize", "--input", "corpus.txt", "--output", "out"};
  const auto with = [&](const Words& more) {
    Words words = common;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_THAT(error_of(common, 2), StartsWith("--tokenizer: not given"));
  EXPECT_THAT(error_of(with({"--train-vocabulary", "100"}), 2),
              AllOf(StartsWith("--train-vocabulary: "), HasSubstr("260 to 1048576")));
  EXPECT_THAT(error_of(with({"--train-vocabulary", "100000"}), 2),
              AllOf(StartsWith("--train-vocabulary: "), HasSubstr("at most")));
  EXPECT_THAT(error_of(with({"--train-vocabulary", "300", "--tokenizer", "bytes"}), 2),
              HasSubstr("excludes"));
  EXPECT_THAT(error_of(with({"--tokenizer", "absent.model"}), 1), HasSubstr("absent.model"));
  EXPECT_THAT(error_of(with({"--tokenizer", "corpus.txt"}), 1),
              HasSubstr("'corpus.txt' is not a SentencePiece model"));
  EXPECT_THAT(
      error_of({"tokenize", "--input", "absent.txt", "--output", "out", "--tokenizer", "bytes"}, 1),
      HasSubstr("absent.txt"));
  EXPECT_THAT(error_of({"tokenize", "--input", "corpus.txt", "--output", "no/such/out",
                        "--tokenizer", "bytes"},
                       1),
              HasSubstr("no/such/out"));
  EXPECT_EQ(folder_.num_entries(), 1) << "something was left behind";
}

TEST_F(TokenizeCommand, FullDiskLeavesNothing) {
  EXPECT_THAT(
      error_of({"tokenize", "--input", "corpus.txt", "--output", "out", "--tokenizer", "bytes"}, 1,
               {.max_file_bytes = 20000}),
      AllOf(HasSubstr("out.bin"), HasSubstr("File too large")));
  EXPECT_EQ(folder_.num_entries(), 1) << "something was left behind";
}

TEST_F(TokenizeCommand, TruncatedModelIsRefused) {
  output_of({"tokenize", "--input", "corpus.txt", "--output", "tok", "--train-vocabulary", "300"});
  const std::string model = read("tok.model");
  write("cut.model", model.substr(0, model.size() / 2));
  for (const Words& words :
       {Words{"inspect", "cut.model"},
        Words{"tokenize", "--input", "corpus.txt", "--output", "c", "--tokenizer", "cut.model"}}) {
    EXPECT_THAT(error_of(words, 1), AllOf(HasSubstr("cut.model"), HasSubstr("truncated")));
  }
}

}  // namespace
}  // namespace braid
