#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace braid {

/// What ranks of this process say when they are asked (Rendezvous::set_answer). For any thread.
class Answers {
 public:
  /// An empty function takes the answer away, once a call that runs has returned.
  void set(int rank, std::string_view question, std::function<std::string()> answer) {
    const std::scoped_lock lock(mutex_);
    answers_[{rank, std::string(question)}] = std::move(answer);
  }

  /// Nullopt if the rank has none.
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
