#include "comm/tcp/tcp_rendezvous.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "base/sha256.h"
#include "base/text.h"
#include "comm/answers.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/rendezvous_protocol.h"
#include "comm/tcp/rendezvous_server.h"
#include "comm/transport.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
using Message = RendezvousMessage;

constexpr int kBeatsPerSilence = 10;
constexpr std::chrono::seconds kAbortPatience{1};  // for the server to accept a reason

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

class TcpRendezvous final : public ProcessGroup {
 public:
  explicit TcpRendezvous(TcpRendezvousOptions options);
  ~TcpRendezvous() override;

  int size() const override { return num_processes_; }
  int index() const override { return process_; }
  std::string host() const override { return host_; }
  std::vector<std::string> all_gather(std::string_view name, std::string bytes) override {
    return gather(name, bytes, true);
  }
  std::vector<std::string> gather(std::string_view name, std::string bytes) override {
    return gather(name, bytes, false);
  }
  void finish() override;
  bool leader_is_lost() const override { return leader_is_lost_; }
  std::string secret_for(std::string_view purpose) const override {
    return hmac_sha256(secret_, purpose);
  }

  void put(std::string_view key, std::string value) override;
  std::string get(std::string_view key) override;
  void abort(const std::string& reason) override;
  std::optional<std::string> aborted() const override;
  void set_answer(std::string_view question, std::function<std::string()> answer) override {
    own_answers_.set(process_, question, std::move(answer));
  }
  std::map<int, std::string> ask_others(std::string_view question,
                                        std::chrono::nanoseconds patience) override;

 private:
  /// The answers of the others so far.
  struct Question {
    int num_heard = 0;
    std::map<int, std::string> answers;
  };

  void connect(const TcpRendezvousOptions& options);
  void serve(TcpRendezvousOptions& options);
  std::string hello(const TcpRendezvousOptions& options) const;
  void listen();
  void take(const Frame& frame);
  void take_done(std::string_view bytes);
  void take_question(std::string_view bytes);
  void take_answer(std::string_view bytes);
  void beat();
  void set_reason(const std::string& reason);
  void lose_leader(const std::string& what);
  bool say(Message type, std::string_view body);
  std::string ask(Message type, ByteWriter body, std::string_view name,
                  std::optional<std::chrono::nanoseconds> limit);
  std::vector<std::string> gather(std::string_view name, const std::string& bytes, bool for_all);
  ByteWriter request(uint32_t number) const { return ByteWriter().number(number); }
  uint32_t next_request();

  const int num_processes_;
  const int process_;
  const std::chrono::nanoseconds timeout_;
  const std::chrono::nanoseconds silence_;
  const std::string leader_host_;  // address of process 0 as given to this process
  const std::string secret_;
  std::unique_ptr<RendezvousServer> server_;  // only in process 0
  Socket socket_;
  std::string host_;         // see ProcessGroup::host
  FrameBuffer in_;           // of the thread below
  std::string leader_name_;  // "host:pid" of process 0
  Clock::time_point heard_;  // used by that thread only
  Answers own_answers_;
  std::mutex send_mutex_;     // held while sending one frame
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  uint32_t num_requests_ = 0;
  std::map<uint32_t, std::optional<std::string>> answers_;  // of pending requests
  std::map<uint32_t, Question> questions_;                  // pending questions
  std::optional<std::string> reason_;                       // of the abort
  std::atomic<bool> finished_{false};
  std::atomic<bool> leader_is_lost_{false};
  std::atomic<bool> ends_{false};
  std::thread listener_;
};

TcpRendezvous::TcpRendezvous(TcpRendezvousOptions options)
    : num_processes_(options.num_processes),
      process_(options.process),
      timeout_(options.timeout_ns),
      silence_(options.silence_ns),
      leader_host_(options.address.host),
      secret_(options.secret) {
  check(process_ >= 0 && process_ < num_processes_, "process {} of {}", process_, num_processes_);
  check(!secret_.empty() || is_loopback(leader_host_), "no secret for a run at {}", leader_host_);
  if (process_ == 0) {
    serve(options);
  }
  connect(options);
  heard_ = Clock::now();
  listener_ = std::thread([this] { listen(); });
}

void TcpRendezvous::serve(TcpRendezvousOptions& options) {
  Socket listener = options.listener.valid()
                        ? std::move(options.listener)
                        : listen_for(options.address.host, options.address.port);
  options.address = {"127.0.0.1", port_of(listener)};  // its own client needs no network
  server_ = std::make_unique<RendezvousServer>(
      std::move(listener), RendezvousServerOptions{.num_processes = num_processes_,
                                                   .run = options.run,
                                                   .secret = options.secret,
                                                   .build = options.build,
                                                   .name = process_name(),
                                                   .silence_ns = options.silence_ns,
                                                   .arrival_ns = options.timeout_ns});
}

std::string TcpRendezvous::hello(const TcpRendezvousOptions& options) const {
  return ByteWriter()
      .text(options.run)
      .text(options.build)
      .number(static_cast<int32_t>(num_processes_))
      .number(static_cast<int32_t>(process_))
      .text(process_name())
      .take();
}

/// Throws ConfigError if process 0 refuses this one.
void TcpRendezvous::connect(const TcpRendezvousOptions& options) {
  try {
    Entry entry = enter({.address = options.address,
                         .key = {.magic = std::string(kRendezvousMagic), .secret = secret_},
                         .hello = hello(options)},
                        Clock::now() + timeout_);
    socket_ = std::move(entry.socket);
    in_ = std::move(entry.in);
    leader_name_ = printable(entry.welcome, kShownNameBytes);
  } catch (const DeviceError& error) {
    throw_device_error("rank {} waited {:.3g} s for rank 0: {}", process_, seconds(timeout_),
                       error.what());
  } catch (const ConfigError& error) {
    throw_config_error("rank 0 at {}, port {} refuses rank {}: {}", options.address.host,
                       options.address.port, process_, error.what());
  }
  // A process that reaches process 0 over loopback is on its host, so it has the same host name.
  const std::string own = own_address(socket_);
  const bool is_local = own.starts_with("127.") || own == "::1" || own.starts_with("::ffff:127.");
  host_ = is_local ? leader_host_ : own;
}

/// If the run has not ended successfully, tells all processes before this one ends.
TcpRendezvous::~TcpRendezvous() {
  if (!finished_ && !aborted()) {
    abort(fmt::format("rank {} ({}) has given up", process_, process_name()));
  }
  ends_ = true;
  socket_.shutdown();  // wakes the listener thread; data already sent still arrives
  listener_.join();
  socket_ = Socket();
  server_.reset();
}

/// Reads messages of the server, and sends heartbeats.
void TcpRendezvous::listen() {
  const auto beat_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(silence_) / kBeatsPerSilence;
  const std::chrono::milliseconds patience = std::min(beat_ms, std::chrono::milliseconds(100));
  Clock::time_point last_beat{};
  Clock::time_point last_look = Clock::now();
  while (!ends_) {
    const ReadResult result = read_some(socket_, in_.bytes(), patience);
    const Clock::time_point now = Clock::now();
    if (result == ReadResult::kBytes || now - last_look > silence_ / 2) {
      heard_ = now;  // in the latter case this process itself was stopped
    }
    last_look = now;
    try {
      while (const std::optional<Frame> frame = in_.next(kMaxMessageBytes)) {
        take(*frame);
      }
    } catch (const DeviceError& error) {
      return lose_leader(error.what());
    }
    if (result == ReadResult::kEnded) {
      return lose_leader("has ended");
    }
    if (now - heard_ > silence_) {
      return lose_leader(fmt::format("has not answered for {:.3g} s", seconds(silence_)));
    }
    if (now - last_beat > beat_ms) {
      last_beat = now;
      beat();
    }
  }
}

/// Skipped while this process sends something else, which has the same effect.
void TcpRendezvous::beat() {
  const std::unique_lock lock(send_mutex_, std::try_to_lock);
  if (lock.owns_lock()) {
    send_all(socket_, pack_frame(static_cast<uint8_t>(Message::kPing), {}));
  }
}

void TcpRendezvous::take(const Frame& frame) {
  const auto type = static_cast<Message>(frame.type);
  if (type == Message::kAborted) {  // nothing is left to say: process 0 need not wait for this one
    set_reason(frame.body);
    ends_ = true;
    return socket_.shutdown();
  }
  if (type == Message::kDone) {
    return take_done(frame.body);
  }
  if (type == Message::kQuestion) {
    return take_question(frame.body);
  }
  if (type == Message::kAnswered) {
    return take_answer(frame.body);
  }
}

void TcpRendezvous::take_done(std::string_view bytes) {
  ByteReader body(bytes);
  const auto number = body.number<uint32_t>();
  const std::scoped_lock lock(mutex_);
  const auto found = answers_.find(number);
  if (found != answers_.end()) {
    found->second = std::string(body.rest());
    changed_.notify_all();
  }
}

void TcpRendezvous::take_question(std::string_view bytes) {
  ByteReader body(bytes);
  const auto asker = body.number<int32_t>();
  const auto request = body.number<uint32_t>();
  const std::optional<std::string> answer = own_answers_.of(process_, body.text());
  say(Message::kAnswer, ByteWriter()
                            .number(asker)
                            .number(request)
                            .number(static_cast<uint8_t>(answer.has_value()))
                            .text(answer.value_or(""))
                            .take());
}

void TcpRendezvous::take_answer(std::string_view bytes) {
  ByteReader body(bytes);
  const auto request = body.number<uint32_t>();
  const auto process = body.number<int32_t>();
  const bool is_there = body.number<uint8_t>() != 0;
  const std::scoped_lock lock(mutex_);
  const auto question = questions_.find(request);
  if (question == questions_.end()) {
    return;  // the timeout of the request has passed
  }
  ++question->second.num_heard;
  if (is_there) {
    question->second.answers.emplace(process, body.text());
  }
  changed_.notify_all();
}

void TcpRendezvous::set_reason(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  reason_ = reason_ ? reason_ : reason;
  changed_.notify_all();
}

void TcpRendezvous::lose_leader(const std::string& what) {
  if (finished_ || ends_) {
    return;
  }
  leader_is_lost_ = true;
  set_reason(fmt::format("rank 0 ({}) {}", leader_name_, what));
  socket_.shutdown();  // makes a sending thread return
}

/// False if the connection has ended.
bool TcpRendezvous::say(Message type, std::string_view body) {
  const std::scoped_lock lock(send_mutex_);
  return send_all(socket_, frame_header(static_cast<uint8_t>(type), body.size())) &&
         send_all(socket_, body);
}

uint32_t TcpRendezvous::next_request() {
  const std::scoped_lock lock(mutex_);
  const uint32_t number = ++num_requests_;
  answers_[number] = std::nullopt;
  return number;
}

/// Sends a request and waits for its reply. `name` describes it in messages.
std::string TcpRendezvous::ask(Message type, ByteWriter body, std::string_view name,
                               std::optional<std::chrono::nanoseconds> limit) {
  const uint32_t number = next_request();
  std::string bytes = request(number).take();
  bytes += body.take();
  check(bytes.size() <= kMaxMessageBytes, "{} bytes for {}", bytes.size(), name);
  say(type, bytes);
  std::unique_lock lock(mutex_);
  std::optional<std::string>& answer = answers_.at(number);
  const auto is_over = [&] { return answer || reason_; };
  bool in_time = true;
  if (limit) {
    in_time = changed_.wait_for(lock, *limit, is_over);
  } else {
    changed_.wait(lock, is_over);
  }
  const std::optional<std::string> found = std::move(answer);
  answers_.erase(number);
  if (found) {
    return *found;
  }
  if (in_time) {
    throw AbortedError(*reason_);
  }
  throw_device_error("rank {} waited {:.3g} s for {}", process_, seconds(*limit), name);
}

void TcpRendezvous::put(std::string_view key, std::string value) {
  const std::string answer =
      ask(Message::kPut, std::move(ByteWriter().text(key).text(value)), key, timeout_);
  check(answer == "0", "rank {} puts a second value under {}", process_, key);
}

std::string TcpRendezvous::get(std::string_view key) {
  return ask(Message::kGet, std::move(ByteWriter().text(key)), key, timeout_);
}

std::vector<std::string> TcpRendezvous::gather(std::string_view name, const std::string& bytes,
                                               bool for_all) {
  const std::string answer =
      ask(Message::kGather,
          std::move(ByteWriter().text(name).number(static_cast<uint8_t>(for_all)).text(bytes)),
          name, std::nullopt);
  ByteReader body(answer);
  std::vector<std::string> all(body.count(sizeof(uint64_t)));
  for (std::string& one : all) {
    one = body.text();
  }
  return all;
}

std::map<int, std::string> TcpRendezvous::ask_others(std::string_view question,
                                                     std::chrono::nanoseconds patience) {
  uint32_t number = 0;
  {
    const std::scoped_lock lock(mutex_);
    number = ++num_requests_;
    questions_[number] = {};
  }
  say(Message::kAsk, ByteWriter().number(number).text(question).take());
  std::unique_lock lock(mutex_);
  const Question& asked = questions_.at(number);
  changed_.wait_for(lock, patience,
                    [&] { return asked.num_heard == num_processes_ - 1 || reason_; });
  std::map<int, std::string> answers = asked.answers;
  questions_.erase(number);
  return answers;
}

/// The first reason of all processes stays, so this process sends its reason to the server and
/// takes the server's answer.
void TcpRendezvous::abort(const std::string& reason) {
  if (aborted()) {
    return;
  }
  say(Message::kAbort, reason);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kAbortPatience, [&] { return reason_.has_value(); });
  reason_ = reason_ ? reason_ : reason;
  changed_.notify_all();
}

std::optional<std::string> TcpRendezvous::aborted() const {
  const std::scoped_lock lock(mutex_);
  return reason_;
}

void TcpRendezvous::finish() {
  barrier("the end of the run");
  finished_ = true;
  say(Message::kGoodbye, {});
}

}  // namespace

std::unique_ptr<ProcessGroup> make_tcp_rendezvous(TcpRendezvousOptions options) {
  return std::make_unique<TcpRendezvous>(std::move(options));
}

std::string process_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) {
    host = {"?"};
  }
  return fmt::format("{}:{}", host.data(), ::getpid());
}

}  // namespace braid
