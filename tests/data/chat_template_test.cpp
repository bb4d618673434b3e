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

}  // namespace
}  // namespace braid
