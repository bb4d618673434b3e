#include "comm/process_group.h"

#include <utility>

#include "base/sha256.h"

namespace braid {
namespace {

class LoneProcess final : public ProcessGroup {
 public:
  int size() const override { return 1; }
  int index() const override { return 0; }
  std::string host() const override { return "127.0.0.1"; }
  std::vector<std::string> all_gather(std::string_view, std::string bytes) override {
    return {std::move(bytes)};
  }
  std::vector<std::string> gather(std::string_view, std::string bytes) override {
    return {std::move(bytes)};
  }
  void finish() override {}
  bool leader_is_lost() const override { return false; }
  std::string secret_for(std::string_view purpose) const override {
    return hmac_sha256(secret_, purpose);
  }

  void put(std::string_view key, std::string value) override { board_->put(key, std::move(value)); }
  std::string get(std::string_view key) override { return board_->get(key); }
  void abort(const std::string& reason) override { board_->abort(reason); }
  std::optional<std::string> aborted() const override { return board_->aborted(); }
  void set_answer(std::string_view question, std::function<std::string()> answer) override {
    board_->set_answer(question, std::move(answer));
  }
  std::map<int, std::string> ask_others(std::string_view question,
                                        std::chrono::nanoseconds patience) override {
    return board_->ask_others(question, patience);
  }

 private:
  const std::string secret_ = random_bytes(32);
  std::unique_ptr<Rendezvous> board_ = std::move(make_in_process_rendezvous(1, 1).front());
};

}  // namespace

std::string ProcessGroup::broadcast(std::string_view name, std::string bytes) {
  std::vector<std::string> all = all_gather(name, leads() ? std::move(bytes) : std::string());
  return std::move(all.front());
}

std::unique_ptr<ProcessGroup> make_lone_process() {
  return std::make_unique<LoneProcess>();
}

}  // namespace braid
