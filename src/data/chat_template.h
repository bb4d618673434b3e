#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// How prompts and answers become text.
enum class ChatTemplate : uint8_t {
  kPlain,   ///< the prompt and the completion, one after the other; not for "messages"
  kChatml,  ///< "<|im_start|>user\nHello<|im_end|>\n": Qwen and others
  kLlama3,  ///< "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>", texts trimmed
};

struct NamedChatTemplate {
  std::string_view name;
  ChatTemplate value;
};
inline constexpr std::array kChatTemplates = {NamedChatTemplate{"plain", ChatTemplate::kPlain},
                                              NamedChatTemplate{"chatml", ChatTemplate::kChatml},
                                              NamedChatTemplate{"llama3", ChatTemplate::kLlama3}};

/// A run of text of a conversation; the model learns to write those of the assistant, with the mark
/// that ends them.
struct ChatPiece {
  std::string text;
  bool is_answer = false;

  friend bool operator==(const ChatPiece&, const ChatPiece&) = default;
};

/// The conversation of a line of JSONL: {"messages": [{"role": ..., "content": ...}, ...]}, or
/// {"prompt": ..., "completion": ...}, which is a user's message and the assistant's. Without
/// the tokenizer's frame, which every document gets. Throws DataError naming path and line if it is
/// neither, or has no text of the assistant.
std::vector<ChatPiece> chat_of_json(std::string_view json, int64_t line, const std::string& path,
                                    ChatTemplate chat);

/// The preferred and the rejected conversation of a line of JSONL, with the same pieces in front of
/// the first answer. As TRL's DPOTrainer reads it: {"prompt": ..., "chosen": ..., "rejected": ...},
/// each a text (of a user's message and the assistant's) or a list of messages; without "prompt",
/// what both begin with is the prompt. Answers are the messages of the assistant behind the prompt;
/// the first message there must be one. Texts without "prompt" have no roles, so they are for
/// kPlain alone. Throws DataError naming path and line if it is none of these.
struct ChatPair {
  std::vector<ChatPiece> chosen;
  std::vector<ChatPiece> rejected;
};
ChatPair chat_pair_of_json(std::string_view json, int64_t line, const std::string& path,
                           ChatTemplate chat);

}  // namespace braid
