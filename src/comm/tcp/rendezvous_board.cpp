#include "comm/tcp/rendezvous_board.h"

#include <algorithm>

#include "base/byte_fields.h"
#include "base/errors.h"

namespace braid {

using Message = RendezvousMessage;

std::optional<int> RendezvousBoard::missing() const {
  const auto first = std::ranges::find(processes_, false, &Process::has_come);
  return first == processes_.end() ? std::nullopt
                                   : std::optional(static_cast<int>(first - processes_.begin()));
}

void RendezvousBoard::come(int process, std::string welcome) {
  at(process).has_come = true;
  at(process).out = std::move(welcome);
  if (reason_) {
    say(process, Message::kAborted, *reason_);
  }
}

void RendezvousBoard::take(int process, const Frame& frame) {
  switch (static_cast<Message>(frame.type)) {
    case Message::kPut:
      return put(process, frame);
    case Message::kGet:
      return get(process, frame);
    case Message::kGather:
      return gather(process, frame);
    case Message::kAbort:
      return abort(frame.body);
    case Message::kPing:
      return say(process, Message::kPong, {});
    case Message::kGoodbye:
      return leave(process);
    case Message::kAsk:
      return forward_question(process, frame);
    case Message::kAnswer:
      return forward_answer(process, frame);
    default:
      throw_device_error("a message of unknown type {}", frame.type);
  }
}

void RendezvousBoard::say(int process, Message type, std::string_view body) {
  if (has_come(process) && !has_left(process)) {
    out(process) += pack_frame(static_cast<uint8_t>(type), body);
  }
}

void RendezvousBoard::answer(Asker asker, std::string_view bytes) {
  std::string body = ByteWriter().number(asker.request).take();
  body += bytes;
  say(asker.process, Message::kDone, body);
}

void RendezvousBoard::put(int from, const Frame& frame) {
  ByteReader body(frame.body);
  const Asker asker{from, body.number<uint32_t>()};
  const std::string key = body.text();
  const auto [entry, is_new] = values_.try_emplace(key, body.text());
  answer(asker, is_new ? "0" : "1");
  if (!is_new) {
    return;
  }
  const auto [first, last] = waiting_.equal_range(key);
  for (auto one = first; one != last; ++one) {
    answer(one->second, entry->second);
  }
  waiting_.erase(first, last);
}

void RendezvousBoard::get(int from, const Frame& frame) {
  ByteReader body(frame.body);
  const Asker asker{from, body.number<uint32_t>()};
  const std::string key = body.text();
  const auto found = values_.find(key);
  if (found == values_.end()) {
    waiting_.emplace(key, asker);
  } else {
    answer(asker, found->second);
  }
}

void RendezvousBoard::gather(int from, const Frame& frame) {
  ByteReader body(frame.body);
  const Asker asker{from, body.number<uint32_t>()};
  const std::string name = body.text();
  const bool for_all = body.number<uint8_t>() != 0;
  std::string bytes = body.text();
  Gathering& all = gatherings_[name];
  all.for_all = for_all;
  all.askers.push_back(asker);
  if (!all.given.emplace(from, std::move(bytes)).second) {
    throw_device_error("is in {} twice at once", name);
  }
  if (all.given.size() == processes_.size()) {
    finish(all);
    gatherings_.erase(name);
  }
}

void RendezvousBoard::finish(const Gathering& all) {
  ByteWriter body;
  body.number(static_cast<uint64_t>(all.given.size()));
  for (const auto& [process, bytes] : all.given) {
    body.text(bytes);
  }
  const std::string everything = body.take();
  const std::string nothing = ByteWriter().number(uint64_t{0}).take();
  for (const Asker& asker : all.askers) {
    answer(asker, all.for_all || asker.process == 0 ? everything : nothing);
  }
}

void RendezvousBoard::forward_question(int from, const Frame& frame) {
  const std::string body = ByteWriter().number(int32_t{from}).take() + frame.body;
  for (int process = 0; process < static_cast<int>(processes_.size()); ++process) {
    if (process != from) {
      say(process, Message::kQuestion, body);
    }
  }
}

/// The process that asked may have left.
void RendezvousBoard::forward_answer(int from, const Frame& frame) {
  ByteReader body(frame.body);
  const auto asker = body.number<int32_t>();
  const auto request = body.number<uint32_t>();
  if (asker < 0 || asker >= static_cast<int>(processes_.size())) {
    throw_device_error("answers rank {}, which does not exist", asker);
  }
  std::string answer = ByteWriter().number(request).number(int32_t{from}).take();
  answer += body.rest();
  say(asker, Message::kAnswered, answer);
}

void RendezvousBoard::leave(int process) {
  at(process).has_left = true;
  at(process).out.clear();
}

void RendezvousBoard::abort(const std::string& why) {
  if (reason_) {
    return;
  }
  reason_ = why;
  for (int process = 0; process < static_cast<int>(processes_.size()); ++process) {
    say(process, Message::kAborted, why);
  }
}

}  // namespace braid
