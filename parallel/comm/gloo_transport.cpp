#include "parallel/comm/gloo_transport.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "model/core/errors.h"

namespace grpo::parallel {
namespace {

using std::chrono::milliseconds;
using Kind = TransportError::Kind;

milliseconds time_left(SteadyClock::time_point deadline) {
  // Never negative: gloo reads -1 ms as "the default timeout". Rounded up: a wait that ends before
  // its deadline would look like a closed connection.
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(deadline - SteadyClock::now()));
}

// Shows our store to gloo. Waits end at our deadline whatever timeout gloo passes.
class StoreAdapter final : public gloo::rendezvous::Store {
 public:
  StoreAdapter(KeyValueStore& store, SteadyClock::time_point deadline)
      : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    if (!store_.set_if_absent(prefixed(key), std::string(data.begin(), data.end()))) {
      throw TransportError(Kind::kClosed, -1, "the rendezvous key " + key + " is already taken");
    }
  }

  std::vector<char> get(const std::string& key) override {
    const auto value = store_.wait(prefixed(key), time_left(deadline_));
    if (!value) {
      throw TransportError(Kind::kTimeout, -1,
                           "no address of rank " + key + " in the rendezvous store");
    }
    return {value->begin(), value->end()};
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds& /*timeout*/) override {
    wait(keys);
  }

 private:
  static std::string prefixed(const std::string& key) { return "address/" + key; }

  KeyValueStore& store_;
  SteadyClock::time_point deadline_;
};

// Threads started while one of these lives take no signals, so that the program's handlers run on
// its own threads.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &saved_);
  }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

 private:
  sigset_t saved_;
};

// gloo writes to sockets whose peer may be gone; the default action of SIGPIPE would end the
// process silently.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

// gloo's event loop takes a descriptor out only after its current epoll_wait, which lasts 10 ms
// when nothing happens; connecting and closing take out one for each peer. A descriptor that is
// always readable keeps the loop turning, so that these steps take microseconds.
class LoopSpinner final : public gloo::transport::tcp::Handler {
 public:
  LoopSpinner() : descriptor_(::eventfd(1, EFD_CLOEXEC)) {
    CHECK(descriptor_ >= 0, "eventfd: {}", std::strerror(errno));
  }
  LoopSpinner(const LoopSpinner&) = delete;
  LoopSpinner& operator=(const LoopSpinner&) = delete;
  ~LoopSpinner() override { ::close(descriptor_); }  // after the loop has ended

  void start(gloo::transport::tcp::Device& device) {
    device.registerDescriptor(descriptor_, EPOLLIN, this);
  }
  void stop(gloo::transport::tcp::Device& device) {
    device.unregisterDescriptor(descriptor_, this);
  }
  void handleEvents(int /*events*/) override { std::this_thread::yield(); }

 private:
  int descriptor_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(const GlooOptions& options, KeyValueStore& store)
      : context_(std::make_shared<gloo::rendezvous::Context>(options.rank, options.size)) {
    ignore_broken_pipes();
    // gloo gives a listening pair five times this timeout to be connected.
    context_->setTimeout(std::max(milliseconds(1), time_left(options.deadline) / 5));
    gloo::transport::tcp::attr attributes(options.host.c_str());
    const SignalBlock block;
    device_ = gloo::transport::tcp::CreateDevice(attributes);
    StoreAdapter adapter(store, options.deadline);
    spinner_.start(tcp_device());
    context_->connectFullMesh(adapter, device_);
    spinner_.stop(tcp_device());
  }

  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  ~GlooTransport() override {
    spinner_.start(tcp_device());  // until the loop ends with the device
    context_.reset();
    device_.reset();
  }

  void transfer(std::span<const WireMessage> sends, std::span<const WireMessage> receives,
                SteadyClock::time_point deadline) override {
    const WaitScope scope(*this);
    std::vector<Buffer> send_buffers, receive_buffers;
    send_buffers.reserve(sends.size());
    receive_buffers.reserve(receives.size());
    for (const auto& message : sends) {
      send_buffers.push_back(buffer_for(message));
      guard(message.peer, deadline, [&] { send_buffers.back()->send(message.peer, message.slot); });
    }
    for (const auto& message : receives) {
      receive_buffers.push_back(buffer_for(message));
      guard(message.peer, deadline,
            [&] { receive_buffers.back()->recv(message.peer, message.slot); });
    }
    for (size_t i = 0; i < receives.size(); ++i) {
      wait(*receive_buffers[i], /*is_send=*/false, receives[i].peer, deadline);
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      wait(*send_buffers[i], /*is_send=*/true, sends[i].peer, deadline);
    }
  }

  void interrupt() noexcept override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    if (waiting_ == nullptr) return;
    if (waiting_is_send_) {
      waiting_->abortWaitSend();
    } else {
      waiting_->abortWaitRecv();
    }
  }

  milliseconds waiting_for() const override {
    const auto since = wait_start_.load();
    if (since == SteadyClock::duration::zero()) return milliseconds(0);
    return std::chrono::duration_cast<milliseconds>(SteadyClock::now().time_since_epoch() - since);
  }

  void close() noexcept override {
    try {
      context_->closeConnections();
    } catch (...) {  // a pair that is closed already
    }
  }

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  // Marks the time spent in transfer() for waiting_for().
  class WaitScope {
   public:
    explicit WaitScope(GlooTransport& transport) : transport_(transport) {
      transport_.wait_start_ = SteadyClock::now().time_since_epoch();
    }
    WaitScope(const WaitScope&) = delete;
    WaitScope& operator=(const WaitScope&) = delete;
    ~WaitScope() { transport_.wait_start_ = SteadyClock::duration::zero(); }

   private:
    GlooTransport& transport_;
  };

  gloo::transport::tcp::Device& tcp_device() {
    return static_cast<gloo::transport::tcp::Device&>(*device_);
  }

  Buffer buffer_for(const WireMessage& message) {
    CHECK(message.size_bytes > 0, "empty messages are not sent");
    return context_->createUnboundBuffer(message.data, message.size_bytes);
  }

  // Runs a gloo call and turns what it throws into a TransportError.
  template <typename Call>
  void guard(int peer, SteadyClock::time_point deadline, Call call) {
    try {
      call();
    } catch (const std::exception& error) {
      const bool is_late = SteadyClock::now() >= deadline;
      throw TransportError(is_late ? Kind::kTimeout : Kind::kClosed, peer, error.what());
    }
  }

  void wait(gloo::transport::UnboundBuffer& buffer, bool is_send, int peer,
            SteadyClock::time_point deadline) {
    set_waiting(&buffer, is_send);
    bool is_complete = false;
    try {
      guard(peer, deadline, [&] {
        const auto timeout = time_left(deadline);
        is_complete = is_send ? buffer.waitSend(timeout) : buffer.waitRecv(timeout);
      });
    } catch (...) {
      set_waiting(nullptr, false);
      throw;
    }
    set_waiting(nullptr, false);
    if (!is_complete) throw TransportError(Kind::kInterrupted, peer, "interrupted");
  }

  void set_waiting(gloo::transport::UnboundBuffer* buffer, bool is_send) {
    const std::lock_guard lock(mutex_);
    waiting_ = buffer;
    waiting_is_send_ = is_send;
    if (buffer == nullptr || !interrupted_) return;
    if (is_send) {
      buffer->abortWaitSend();
    } else {
      buffer->abortWaitRecv();
    }
  }

  LoopSpinner spinner_;  // outlives the device's loop
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::atomic<SteadyClock::duration> wait_start_{SteadyClock::duration::zero()};
  std::mutex mutex_;  // guards what follows
  gloo::transport::UnboundBuffer* waiting_ = nullptr;
  bool waiting_is_send_ = false;
  bool interrupted_ = false;
};

}  // namespace

std::unique_ptr<Transport> connect_gloo(const GlooOptions& options, KeyValueStore& store) {
  try {
    return std::make_unique<GlooTransport>(options, store);
  } catch (const TransportError&) {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const bool is_late = SteadyClock::now() >= options.deadline;
    throw TransportError(is_late ? Kind::kTimeout : Kind::kClosed, -1, error.what());
  }
}

}  // namespace grpo::parallel
