#include "data/chat_template.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kMessages =
    R"({"messages": [{"role": "system", "content": "Be brief."},
                     {"role": "user", "content": " Hi "},
                     {"role": "assistant", "content": " Hello. "},
                     {"role": "user", "content": "Bye"},
                     {"role": "assistant", "content": ""}]})";

std::vector<ChatPiece> chat(std::string_view json, ChatTemplate with) {
  return chat_of_json(json, 7, "chat.jsonl", with);
}

TEST(ChatTemplate, WritesChatml) {
  EXPECT_THAT(
      chat(kMessages, ChatTemplate::kChatml),
      ElementsAre(ChatPiece{"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi "
                            "<|im_end|>\n<|im_start|>assistant\n",
                            false},
                  ChatPiece{" Hello. <|im_end|>", true},
                  ChatPiece{"\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n", false},
                  ChatPiece{"<|im_end|>", true}, ChatPiece{"\n", false}));
}

TEST(ChatTemplate, WritesLlama3) {
  EXPECT_THAT(chat(kMessages, ChatTemplate::kLlama3),
              ElementsAre(ChatPiece{"<|start_header_id|>system<|end_header_id|>\n\nBe brief."
                                    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
                                    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
                                    false},
                          ChatPiece{"Hello.<|eot_id|>", true},
                          ChatPiece{"<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
                                    "<|start_header_id|>assistant<|end_header_id|>\n\n",
                                    false},
                          ChatPiece{"<|eot_id|>", true}));
}

TEST(ChatTemplate, TakesPromptsWithCompletions) {
  const char* const pair = R"({"prompt": "2+2=", "completion": "4"})";
  EXPECT_THAT(chat(pair, ChatTemplate::kPlain),
              ElementsAre(ChatPiece{"2+2=", false}, ChatPiece{"4", true}));
  EXPECT_EQ(chat(pair, ChatTemplate::kChatml)[1], (ChatPiece{"4<|im_end|>", true}));
}

TEST(ChatTemplate, NamesTheLineThatIsNoConversation) {
  const auto refusal = [](std::string_view json, ChatTemplate with) {
    return message_of<DataError>([&] { chat(json, with); });
  };
  EXPECT_THAT(refusal(R"({"text": "x"})", ChatTemplate::kChatml),
              HasSubstr("'chat.jsonl' line 7: it must be an object with \"messages\""));
  EXPECT_THAT(refusal(R"({"prompt": "x"})", ChatTemplate::kPlain),
              HasSubstr("\"completion\" must be a string"));
  EXPECT_THAT(refusal(kMessages, ChatTemplate::kPlain), HasSubstr("give --chat chatml or llama3"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "x"}]})", ChatTemplate::kChatml),
              HasSubstr("there is nothing to learn"));
}

ChatPair pair(std::string_view json, ChatTemplate with) {
  return chat_pair_of_json(json, 7, "pairs.jsonl", with);
}

TEST(ChatPairs, OfTextsAreAUsersMessageAndAnswers) {
  const char* const json = R"({"prompt": "2+2=", "chosen": "4", "rejected": "5!"})";
  const ChatPair plain = pair(json, ChatTemplate::kPlain);
  EXPECT_THAT(plain.chosen, ElementsAre(ChatPiece{"2+2=", false}, ChatPiece{"4", true}));
  EXPECT_THAT(plain.rejected, ElementsAre(ChatPiece{"2+2=", false}, ChatPiece{"5!", true}));
  EXPECT_THAT(
      pair(json, ChatTemplate::kChatml).rejected,
      ElementsAre(ChatPiece{"<|im_start|>user\n2+2=<|im_end|>\n<|im_start|>assistant\n", false},
                  ChatPiece{"5!<|im_end|>", true}, ChatPiece{"\n", false}));
}

// As TRL's extract_prompt: up to the first difference, and a blank there belongs to the answers.
TEST(ChatPairs, OfTextsWithoutPromptBeginWithTheSameText) {
  const ChatPair words = pair(R"({"chosen": "The sky is blue.", "rejected": "The sky is green."})",
                              ChatTemplate::kPlain);
  EXPECT_THAT(words.chosen, ElementsAre(ChatPiece{"The sky is", false}, ChatPiece{" blue.", true}));
  EXPECT_THAT(words.rejected,
              ElementsAre(ChatPiece{"The sky is", false}, ChatPiece{" green.", true}));
  // The first bytes of these two letters are the same.
  const ChatPair letters =
      pair("{\"chosen\": \"a\u00e4\", \"rejected\": \"a\u00f6\"}", ChatTemplate::kPlain);
  EXPECT_THAT(letters.chosen, ElementsAre(ChatPiece{"a", false}, ChatPiece{"\u00e4", true}));
}

// Answers of the prompt are not learnt; a later one of the pair is.
TEST(ChatPairs, OfMessagesLearnWhatIsBehindThePrompt) {
  const ChatPair found = pair(R"({
      "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                 {"role": "user", "content": "c"}],
      "chosen": [{"role": "assistant", "content": "d"}, {"role": "user", "content": "e"},
                 {"role": "assistant", "content": "f"}],
      "rejected": [{"role": "assistant", "content": "g"}]})",
                              ChatTemplate::kLlama3);
  const auto head = [](const char* role) {
    return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
  };
  const ChatPiece prompt{head("user") + "a<|eot_id|>" + head("assistant") + "b<|eot_id|>" +
                             head("user") + "c<|eot_id|>" + head("assistant"),
                         false};
  EXPECT_THAT(found.chosen,
              ElementsAre(prompt, ChatPiece{"d<|eot_id|>", true},
                          ChatPiece{head("user") + "e<|eot_id|>" + head("assistant"), false},
                          ChatPiece{"f<|eot_id|>", true}));
  EXPECT_THAT(found.rejected, ElementsAre(prompt, ChatPiece{"g<|eot_id|>", true}));
}

TEST(ChatPairs, OfMessagesWithoutPromptBeginWithTheSameMessages) {
  const ChatPair found = pair(R"({
      "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
      "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]})",
                              ChatTemplate::kChatml);
  EXPECT_EQ(found.chosen[0], found.rejected[0]);
  EXPECT_EQ(found.chosen[1], (ChatPiece{"b<|im_end|>", true}));
  EXPECT_EQ(found.rejected[1], (ChatPiece{"c<|im_end|>", true}));
}

TEST(ChatPairs, NameTheLineThatIsNone) {
  const auto refusal = [](std::string_view json, ChatTemplate with) {
    return message_of<DataError>([&] { pair(json, with); });
  };
  EXPECT_THAT(refusal(R"({"prompt": "x", "chosen": "y"})", ChatTemplate::kPlain),
              HasSubstr("'pairs.jsonl' line 7: it must be an object with \"chosen\""));
  EXPECT_THAT(refusal(R"({"chosen": "x", "rejected": "y"})", ChatTemplate::kChatml),
              HasSubstr("texts without \"prompt\" have no roles"));
  EXPECT_THAT(refusal(R"({"prompt": "x", "chosen": "", "rejected": "y"})", ChatTemplate::kPlain),
              HasSubstr("must not be empty"));
  const char* const users = R"({"prompt": [], "chosen": [{"role": "user", "content": "x"}],
                                "rejected": [{"role": "assistant", "content": "y"}]})";
  EXPECT_THAT(refusal(users, ChatTemplate::kChatml), HasSubstr("the role \"assistant\""));
  EXPECT_THAT(refusal(users, ChatTemplate::kPlain), HasSubstr("give --chat chatml or llama3"));
  EXPECT_THAT(message_of<DataError>([] {
                chat(R"({"prompt": "x", "chosen": "y", "rejected": "z"})", ChatTemplate::kChatml);
              }),
              HasSubstr("give --preference"));
}

}  // namespace
}  // namespace braid
