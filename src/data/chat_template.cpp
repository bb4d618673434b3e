#include "data/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLineLimits = {.depth = 256, .size_bytes = int64_t{1} << 30};
constexpr std::string_view kAssistant = "assistant";

struct Message {
  std::string role;
  std::string content;
};

/// Reads the members of one line.
class LineReader {
 public:
  LineReader(int64_t line, const std::string& path) : line_(line), path_(path) {}

  std::string text(const Json& object, const char* key) const {
    const auto member = object.find(key);
    if (member == object.end() || !member->is_string()) {
      fail(fmt::format("\"{}\" must be a string", key));
    }
    return member->get<std::string>();
  }

  std::vector<Message> messages(const Json& list) const {
    if (!list.is_array()) {
      fail("\"messages\" must be a list");
    }
    std::vector<Message> messages;
    for (const Json& message : list) {
      if (!message.is_object()) {
        fail("each of \"messages\" must be an object with \"role\" and \"content\"");
      }
      messages.push_back({.role = text(message, "role"), .content = text(message, "content")});
    }
    return messages;
  }

  [[noreturn]] void fail(std::string_view reason) const {
    throw_data_error("'{}' line {}: {}", path_, line_, reason);
  }

 private:
  int64_t line_;
  const std::string& path_;
};

/// What stands around a message.
struct Frame {
  std::string before;
  std::string_view end;    ///< belongs to the message
  std::string_view after;  ///< does not
};

Frame frame_of(const std::string& role, ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::kPlain:
      return {};
    case ChatTemplate::kChatml:
      return {fmt::format("<|im_start|>{}\n", role), "<|im_end|>", "\n"};
    case ChatTemplate::kLlama3:
      return {fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role), "<|eot_id|>", ""};
  }
  throw_internal_error("no such template");
}

void append(std::vector<ChatPiece>& pieces, std::string_view text, bool is_answer) {
  if (text.empty()) {
    return;
  }
  if (pieces.empty() || pieces.back().is_answer != is_answer) {
    pieces.push_back({.text = {}, .is_answer = is_answer});
  }
  pieces.back().text += text;
}

}  // namespace

std::vector<ChatPiece> chat_of_json(std::string_view json, int64_t line, const std::string& path,
                                    ChatTemplate chat) {
  const LineReader reader(line, path);
  const Json value = parse_json(json, fmt::format("'{}' line {}", path, line), kLineLimits);
  if (!value.is_object() || (!value.contains("messages") && !value.contains("prompt"))) {
    reader.fail("it must be an object with \"messages\", or with \"prompt\" and \"completion\"");
  }
  const bool is_pair = !value.contains("messages");
  if (!is_pair && chat == ChatTemplate::kPlain) {
    reader.fail("\"messages\" need a template: give --chat chatml or llama3");
  }
  const std::vector<Message> messages =
      is_pair ? std::vector<Message>{{"user", reader.text(value, "prompt")},
                                     {std::string(kAssistant), reader.text(value, "completion")}}
              : reader.messages(value["messages"]);
  std::vector<ChatPiece> pieces;
  for (const Message& message : messages) {
    const Frame frame = frame_of(message.role, chat);
    const bool is_answer = message.role == kAssistant;
    append(pieces, frame.before, false);
    append(pieces, chat == ChatTemplate::kLlama3 ? trim(message.content) : message.content,
           is_answer);
    append(pieces, frame.end, is_answer);
    append(pieces, frame.after, false);
  }
  if (std::ranges::none_of(pieces, &ChatPiece::is_answer)) {
    reader.fail("no message is of the role \"assistant\", so there is nothing to learn");
  }
  return pieces;
}

}  // namespace braid
