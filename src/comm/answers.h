#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace braid {

/// The answers of this process's ranks to questions (Rendezvous::set_answer). Thread-safe.
class Answers {
 public:
  /// An empty function removes the answer. Waits for a call of the old function to return.
  void set(int rank, std::string_view question, std::function<std::string()> answer) {
    const std::scoped_lock lock(mutex_);
    answers_[{rank, std::string(question)}] = std::move(answer);
  }

  /// The rank's answer; nullopt if it has none.
  std::optional<std::string> of(int rank, std::string_view question) const {
    const std::scoped_lock lock(mutex_);
    const auto found = answers_.find({rank, std::string(question)});
    return found != answers_.end() && found->second ? std::optional(found->second()) : std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::function<std::string()>> answers_;
};

}  // namespace braid
