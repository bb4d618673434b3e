#include "data/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "data/documents.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLineLimits = {.depth = 256, .size_bytes = int64_t{1} << 30};
constexpr std::string_view kAssistant = "assistant";

struct Message {
  std::string role;
  std::string content;

  friend bool operator==(const Message&, const Message&) = default;
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

  std::vector<Message> messages(const Json& object, const char* key) const {
    const Json& list = object[key];
    if (!list.is_array()) {
      fail(fmt::format("\"{}\" must be a list", key));
    }
    std::vector<Message> messages;
    for (const Json& message : list) {
      if (!message.is_object()) {
        fail(fmt::format("each of \"{}\" must be an object with \"role\" and \"content\"", key));
      }
      messages.push_back({.role = text(message, "role"), .content = text(message, "content")});
    }
    return messages;
  }

  [[noreturn]] void fail(std::string_view reason) const {
    throw_data_error("{}: {}", document_place(path_, line_), reason);
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

/// The text of messages. Those of the assistant from message `first_answer` on are answers.
std::vector<ChatPiece> pieces_of(const std::vector<Message>& messages, size_t first_answer,
                                 ChatTemplate chat) {
  std::vector<ChatPiece> pieces;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const Frame frame = frame_of(message.role, chat);
    const bool is_answer = message.role == kAssistant && i >= first_answer;
    append(pieces, frame.before, false);
    append(pieces, chat == ChatTemplate::kLlama3 ? trim(message.content) : message.content,
           is_answer);
    append(pieces, frame.end, is_answer);
    append(pieces, frame.after, false);
  }
  return pieces;
}

/// A preferred and a rejected conversation, which begin with the same messages, the prompt.
struct MessagePair {
  std::vector<Message> chosen;
  std::vector<Message> rejected;
  size_t prompt = 0;  // number of messages
};

/// Bytes of whole characters that both texts begin with, without a blank at the end: it belongs to
/// the word behind it.
size_t common_prefix(std::string_view a, std::string_view b) {
  size_t size = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto continues_character = [&](std::string_view text) {
    return size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80;
  };
  while (size > 0 && (continues_character(a) || continues_character(b))) {
    --size;
  }
  return size > 0 && a[size - 1] == ' ' ? size - 1 : size;
}

MessagePair pair_of_texts(const LineReader& reader, const Json& line, ChatTemplate chat) {
  std::string chosen = reader.text(line, "chosen");
  std::string rejected = reader.text(line, "rejected");
  std::string prompt;
  if (line.contains("prompt")) {
    prompt = reader.text(line, "prompt");
  } else if (chat != ChatTemplate::kPlain) {
    reader.fail(
        "texts without \"prompt\" have no roles: give \"prompt\", or lists of messages, or --chat "
        "plain");
  } else {
    const size_t size = common_prefix(chosen, rejected);
    prompt = chosen.substr(0, size);
    chosen.erase(0, size);
    rejected.erase(0, size);
  }
  const std::string assistant(kAssistant);
  return {.chosen = {{"user", prompt}, {assistant, std::move(chosen)}},
          .rejected = {{"user", prompt}, {assistant, std::move(rejected)}},
          .prompt = 1};
}

MessagePair pair_of_messages(const LineReader& reader, const Json& line, ChatTemplate chat) {
  if (chat == ChatTemplate::kPlain) {
    reader.fail("messages need a template: give --chat chatml or llama3");
  }
  MessagePair pair{.chosen = reader.messages(line, "chosen"),
                   .rejected = reader.messages(line, "rejected")};
  if (line.contains("prompt")) {
    const std::vector<Message> prompt = reader.messages(line, "prompt");
    pair.chosen.insert(pair.chosen.begin(), prompt.begin(), prompt.end());
    pair.rejected.insert(pair.rejected.begin(), prompt.begin(), prompt.end());
    pair.prompt = prompt.size();
  } else {
    pair.prompt = static_cast<size_t>(std::ranges::mismatch(pair.chosen, pair.rejected).in1 -
                                      pair.chosen.begin());
  }
  for (const std::vector<Message>* const messages : {&pair.chosen, &pair.rejected}) {
    if (pair.prompt >= messages->size() || (*messages)[pair.prompt].role != kAssistant) {
      reader.fail(
          "behind the prompt, \"chosen\" and \"rejected\" must each go on with a message of the "
          "role \"assistant\"");
    }
  }
  return pair;
}

Json parsed(std::string_view json, int64_t line, const std::string& path) {
  return parse_json(json, document_place(path, line), kLineLimits);
}

}  // namespace

ChatPair chat_pair_of_json(std::string_view json, int64_t line, const std::string& path,
                           ChatTemplate chat) {
  const LineReader reader(line, path);
  const Json value = parsed(json, line, path);
  if (!value.is_object() || !value.contains("chosen") || !value.contains("rejected")) {
    reader.fail("it must be an object with \"chosen\" and \"rejected\", and usually \"prompt\"");
  }
  const MessagePair pair = value["chosen"].is_array() ? pair_of_messages(reader, value, chat)
                                                      : pair_of_texts(reader, value, chat);
  ChatPair pieces{.chosen = pieces_of(pair.chosen, pair.prompt, chat),
                  .rejected = pieces_of(pair.rejected, pair.prompt, chat)};
  for (const std::vector<ChatPiece>* const answer : {&pieces.chosen, &pieces.rejected}) {
    if (std::ranges::none_of(*answer, &ChatPiece::is_answer)) {
      reader.fail("\"chosen\" and \"rejected\" must not be empty");
    }
  }
  return pieces;
}

std::vector<ChatPiece> chat_of_json(std::string_view json, int64_t line, const std::string& path,
                                    ChatTemplate chat) {
  const LineReader reader(line, path);
  const Json value = parsed(json, line, path);
  if (value.is_object() && value.contains("chosen") && value.contains("rejected")) {
    reader.fail("it has \"chosen\" and \"rejected\": give --preference for pairs of answers");
  }
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
              : reader.messages(value, "messages");
  std::vector<ChatPiece> pieces = pieces_of(messages, 0, chat);
  if (std::ranges::none_of(pieces, &ChatPiece::is_answer)) {
    reader.fail("no message is of the role \"assistant\", so there is nothing to learn");
  }
  return pieces;
}

}  // namespace braid
