// The DeviceLink over NCCL. The library is loaded when the first world of several GPUs is made, so
// that other runs need none.
#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "model/core/device_cuda.h"
#include "model/core/device_stream.h"
#include "model/core/errors.h"
#include "parallel/comm/device_link.h"

namespace grpo::parallel {
namespace {

using std::chrono::milliseconds;
using Trouble = RankLink::Trouble;

// Waits shorter than this do not look for trouble elsewhere.
constexpr milliseconds kWatchAfter{200};
constexpr milliseconds kWatchPeriod{50};
// A call that lasts this long hangs, if anything is wrong elsewhere.
constexpr milliseconds kCallGrace{5000};
constexpr int kOldestVersion = 21800;  // the first with ncclCommSplit

// The part of NCCL that is used, looked up by name.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclCommInitRankConfig) comm_init;
  decltype(&ncclCommSplit) comm_split;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
};

struct LoadedNccl {
  Nccl functions{};
  int version = 0;
  std::string algorithm;
  std::string protocol;
  std::string problem;  // empty when the functions can be used
};

std::string version_name(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Of a variable that NCCL reads when it makes its first communicator; the environment's own value
// stays.
std::string pin(const char* name, const char* value) {
  setenv(name, value, /*overwrite=*/0);
  return std::getenv(name);
}

LoadedNccl load_nccl() {
  LoadedNccl loaded;
  loaded.algorithm = pin("NCCL_ALGO", "Ring");
  loaded.protocol = pin("NCCL_PROTO", "Simple");
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    loaded.problem = fmt::format("NCCL cannot be loaded ({})", reason == nullptr ? "" : reason);
    return loaded;
  }
  const auto look_up = [&](auto& function, const char* name) {
    void* const address = dlsym(library, name);
    if (address == nullptr && loaded.problem.empty()) {
      loaded.problem = fmt::format("this machine's NCCL has no {}; needed: {} or newer", name,
                                   version_name(kOldestVersion));
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  Nccl& f = loaded.functions;
  look_up(f.get_version, "ncclGetVersion");
  look_up(f.get_unique_id, "ncclGetUniqueId");
  look_up(f.error_string, "ncclGetErrorString");
  look_up(f.last_error, "ncclGetLastError");
  look_up(f.comm_init, "ncclCommInitRankConfig");
  look_up(f.comm_split, "ncclCommSplit");
  look_up(f.async_error, "ncclCommGetAsyncError");
  look_up(f.comm_destroy, "ncclCommDestroy");
  look_up(f.comm_abort, "ncclCommAbort");
  look_up(f.group_start, "ncclGroupStart");
  look_up(f.group_end, "ncclGroupEnd");
  look_up(f.all_gather, "ncclAllGather");
  look_up(f.broadcast, "ncclBroadcast");
  look_up(f.send, "ncclSend");
  look_up(f.receive, "ncclRecv");
  if (f.get_version != nullptr) f.get_version(&loaded.version);
  if (loaded.problem.empty() && loaded.version < kOldestVersion) {
    loaded.problem = fmt::format("this machine's NCCL is {}; needed: {} or newer",
                                 version_name(loaded.version), version_name(kOldestVersion));
  }
  return loaded;
}

const LoadedNccl& nccl() {
  static const LoadedNccl loaded = load_nccl();
  return loaded;
}

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

// Who works together on what, for messages.
struct Work {
  std::string during;      // "all_gather of group dp"
  std::vector<int> peers;  // world ranks
};

// All calls of NCCL are made under one lock; what they queue is watched by a thread that aborts
// everything when a peer does not come. The world's communicator does not block, so that its making
// and splitting can be given up; the groups' do, as each of their calls is ten times faster then.
// A call that hangs keeps the lock and uses its group: the watcher then aborts the world alone,
// whose groups share its abort flag, so that the call comes back, and frees nothing of theirs.
class NcclLink final : public DeviceLink, public std::enable_shared_from_this<NcclLink> {
 public:
  NcclLink(Device device, std::shared_ptr<RankLink> link)
      : device_(device), link_(std::move(link)), nccl_(nccl().functions) {}
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;
  ~NcclLink() override;

  void connect(Communicator& everyone);
  std::shared_ptr<DeviceTransport> make_group(const std::vector<int>& ranks,
                                              const std::string& name) override;
  void abort() noexcept override;
  std::string description() const override {
    const LoadedNccl& loaded = nccl();
    return fmt::format("NCCL {} (algorithm {}, protocol {})", version_name(loaded.version),
                       loaded.algorithm, loaded.protocol);
  }

  // Queues `call()` on the stream as one group of NCCL calls.
  template <typename Call>
  void queue(ncclComm_t comm, const Work& work, Stream stream, Call call) {
    link_->rethrow_failure();
    const std::lock_guard lock(mutex_);
    CHECK(!is_aborted_, "{} after the link was aborted", work.during);
    current_ = work;
    call_start_ = SteadyClock::now();
    ncclResult_t result = nccl_.group_start();
    if (result == ncclSuccess) result = call();
    const ncclResult_t end = nccl_.group_end();
    call_start_ = kNoCall;
    link_->rethrow_failure();  // of a call that hung and was aborted
    settle(comm, result == ncclSuccess ? end : result, work);
    DeviceEvent done = take_event();
    done.record(stream);
    if (in_flight_.empty()) last_progress_ = SteadyClock::now();
    in_flight_.push_back({std::move(done), work});
  }
  const Nccl& functions() const { return nccl_; }

 private:
  struct InFlight {
    DeviceEvent done;
    Work work;
  };

  // Waits until NCCL has taken the calls. Throws when it cannot.
  void settle(ncclComm_t comm, ncclResult_t result, const Work& work);
  void give_up(Trouble trouble, const Work& work, ncclResult_t result);
  void abort_locked() noexcept;
  DeviceEvent take_event();
  void watch();
  // Looks once; true when the work is over.
  bool watch_once();
  // The same while a call keeps the lock.
  bool watch_call();
  ncclResult_t first_async_error() const;

  Device device_;
  std::shared_ptr<RankLink> link_;
  const Nccl& nccl_;

  std::timed_mutex mutex_;
  std::deque<ncclComm_t> comms_;  // the world's first; NCCL writes into that later
  // What a split makes: NCCL's until the split is over, and left to it when that fails.
  ncclComm_t joining_ = nullptr;
  bool is_connecting_ = false;  // the world's communicator is being made or split
  static constexpr SteadyClock::time_point kNoCall{};
  std::atomic<SteadyClock::time_point> call_start_ = kNoCall;  // of queue()'s, which may hang
  Work current_;                                               // likewise
  std::atomic<bool> is_aborted_ = false;
  std::deque<InFlight> in_flight_;
  std::vector<DeviceEvent> idle_events_;
  SteadyClock::time_point last_progress_;

  std::mutex closing_mutex_;
  std::condition_variable wakeup_;
  bool is_closing_ = false;
  std::thread watcher_;
};

class NcclTransport final : public DeviceTransport {
 public:
  NcclTransport(std::shared_ptr<NcclLink> link, ncclComm_t comm, std::vector<int> peers,
                const std::string& name)
      : link_(std::move(link)), comm_(comm), peers_(std::move(peers)), name_(name) {}

  void all_gather(const Tensor& out, const Tensor& in, Stream stream) override {
    link_->queue(comm_, work("all_gather"), stream, [&] {
      return link_->functions().all_gather(in.raw(), out.raw(), in.size_bytes(), ncclUint8, comm_,
                                           native(stream));
    });
  }

  void broadcast(const Tensor& data, int root, Stream stream) override {
    link_->queue(comm_, work("broadcast"), stream, [&] {
      return link_->functions().broadcast(data.raw(), data.raw(), data.size_bytes(), ncclUint8,
                                          root, comm_, native(stream));
    });
  }

  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                const char* operation, Stream stream) override {
    link_->queue(comm_, work(operation), stream, [&] {
      ncclResult_t result = ncclSuccess;
      for (const auto& [peer, data] : sends) {
        if (result != ncclSuccess || data.num_elements() == 0) continue;
        result = link_->functions().send(data.raw(), data.size_bytes(), ncclUint8, peer, comm_,
                                         native(stream));
      }
      for (const auto& [peer, data] : receives) {
        if (result != ncclSuccess || data.num_elements() == 0) continue;
        result = link_->functions().receive(data.raw(), data.size_bytes(), ncclUint8, peer, comm_,
                                            native(stream));
      }
      return result;
    });
  }

 private:
  Work work(const char* operation) const {
    return {fmt::format("{} of group {}", operation, name_), peers_};
  }

  std::shared_ptr<NcclLink> link_;
  ncclComm_t comm_;
  std::vector<int> peers_;  // world ranks of the others
  std::string name_;
};

ncclConfig_t comm_config(bool blocks) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocks ? 1 : 0;
  config.splitShare = 1;
  return config;
}

std::vector<int> without(const std::vector<int>& ranks, int own) {
  std::vector<int> others = ranks;
  std::erase(others, own);
  return others;
}

void NcclLink::connect(Communicator& everyone) {
  cuda_synchronize(device_, Stream::none());  // makes the device this thread's
  ncclUniqueId id{};
  if (everyone.rank() == 0) {
    const ncclResult_t result = nccl_.get_unique_id(&id);
    if (result != ncclSuccess) {
      throw CommError(fmt::format("ncclGetUniqueId failed: {}", nccl_.error_string(result)));
    }
  }
  everyone.broadcast(Tensor(id.internal, DType::kUint8, {NCCL_UNIQUE_ID_BYTES}, Device::cpu()), 0,
                     Stream::none());
  everyone.barrier();
  std::vector<int> ranks;
  for (int rank = 0; rank < everyone.size(); ++rank) ranks.push_back(rank);
  {
    const std::lock_guard lock(mutex_);
    is_connecting_ = true;
    const Work work{"connection of the GPUs", without(ranks, everyone.rank())};
    ncclConfig_t config = comm_config(false);
    ncclComm_t& comm = comms_.emplace_back(nullptr);
    const ncclResult_t result =
        nccl_.comm_init(&comm, everyone.size(), id, everyone.rank(), &config);
    settle(comm, result, work);
    is_connecting_ = false;
    last_progress_ = SteadyClock::now();
  }
  watcher_ = std::thread([this] { watch(); });
}

std::shared_ptr<DeviceTransport> NcclLink::make_group(const std::vector<int>& ranks,
                                                      const std::string& name) {
  link_->rethrow_failure();
  const std::lock_guard lock(mutex_);
  const Work work{fmt::format("making of group {}", name), without(ranks, link_->rank())};
  CHECK(!is_aborted_, "{} after the link was aborted", work.during);
  std::vector<int> everyone;
  for (int rank = 0; rank < link_->size(); ++rank) everyone.push_back(rank);
  const Work split{work.during, without(everyone, link_->rank())};
  ncclConfig_t config = comm_config(true);
  is_connecting_ = true;
  const int color = ranks.size() > 1 ? ranks.front() : NCCL_SPLIT_NOCOLOR;
  settle(comms_.front(), nccl_.comm_split(comms_.front(), color, link_->rank(), &joining_, &config),
         split);
  is_connecting_ = false;
  if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
  ncclComm_t const comm = comms_.emplace_back(std::exchange(joining_, nullptr));
  settle(comm, ncclSuccess, work);
  return std::make_shared<NcclTransport>(shared_from_this(), comm, work.peers, name);
}

void NcclLink::settle(ncclComm_t comm, ncclResult_t result, const Work& work) {
  const auto start = SteadyClock::now();
  auto next_look = start + kWatchAfter;
  // Also a call that says success may still be at work.
  while (result == ncclSuccess || result == ncclInProgress) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_.async_error(comm, &state);
    result = asked == ncclSuccess ? state : asked;
    if (result == ncclSuccess) return;
    if (result != ncclInProgress) break;
    const auto now = SteadyClock::now();
    if (now - start >= link_->timeout()) return give_up(Trouble::kTimeout, work, result);
    if (now >= next_look) {
      if (link_->has_trouble()) return give_up(Trouble::kInterrupted, work, result);
      next_look = now + kWatchPeriod;
    }
    std::this_thread::sleep_for(now - start < milliseconds(1) ? std::chrono::microseconds(5)
                                                              : std::chrono::microseconds(200));
  }
  give_up(Trouble::kBroken, work, result);
}

void NcclLink::give_up(Trouble trouble, const Work& work, ncclResult_t result) {
  std::string detail = nccl_.error_string(result);
  if (!comms_.empty() && comms_.front() != nullptr) {
    const std::string more = nccl_.last_error(comms_.front());
    if (!more.empty()) detail += ": " + more;
  }
  for (char& c : detail) {
    if (c == '\n') c = ' ';
  }
  link_->give_up(trouble, work.peers, work.during, detail);
  abort_locked();
  if (is_connecting_) {
    // NCCL's threads may still write what the making of a communicator gives: it stays for good.
    static auto& left_to_nccl = *new std::vector<std::shared_ptr<NcclLink>>;
    left_to_nccl.push_back(shared_from_this());
  }
  link_->rethrow_failure();
}

void NcclLink::abort() noexcept {
  const std::lock_guard lock(mutex_);
  abort_locked();
}

// Groups before the world they were split from. A world on which NCCL's own threads still work, or
// just failed to, is left to them.
void NcclLink::abort_locked() noexcept {
  if (is_aborted_.exchange(true)) return;
  for (; comms_.size() > (is_connecting_ ? 1 : 0); comms_.pop_back()) {
    nccl_.comm_abort(comms_.back());
  }
}

NcclLink::~NcclLink() {
  {
    const std::lock_guard lock(closing_mutex_);
    is_closing_ = true;
  }
  wakeup_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (is_aborted_) return;
  for (; !comms_.empty(); comms_.pop_back()) nccl_.comm_destroy(comms_.back());
}

DeviceEvent NcclLink::take_event() {
  if (idle_events_.empty()) return DeviceEvent(device_);
  DeviceEvent event = std::move(idle_events_.back());
  idle_events_.pop_back();
  return event;
}

void NcclLink::watch() {
  // Not on mutex_: a wait would end by taking it, which a call that hangs keeps.
  const auto is_over = [&] {
    std::unique_lock lock(closing_mutex_);
    return wakeup_.wait_for(lock, kWatchPeriod, [this] { return is_closing_; });
  };
  while (!is_over()) {
    const std::unique_lock lock(mutex_, kWatchPeriod);
    if (!lock.owns_lock()) {
      if (watch_call()) return;
      continue;
    }
    if (is_aborted_) return;
    try {
      if (watch_once()) return;
    } catch (const std::exception&) {
      // The device itself failed, or peers did: the rank's own thread meets the same.
      return;
    }
  }
}

// A call keeps the lock: peers do not come to it. Only the call's thread changes what is read here,
// and that one hangs.
bool NcclLink::watch_call() {
  const SteadyClock::time_point start = call_start_;
  if (start == kNoCall) return false;
  const auto waited = SteadyClock::now() - start;
  const bool is_late = waited >= link_->timeout();
  if (!is_late && (waited < kCallGrace || !link_->has_trouble())) return false;
  link_->give_up(is_late ? Trouble::kTimeout : Trouble::kInterrupted, current_.peers,
                 current_.during, "");
  is_aborted_ = true;
  nccl_.comm_abort(comms_.front());
  return true;
}

bool NcclLink::watch_once() {
  const auto now = SteadyClock::now();
  while (!in_flight_.empty() && in_flight_.front().done.is_done()) {
    idle_events_.push_back(std::move(in_flight_.front().done));
    in_flight_.pop_front();
    last_progress_ = now;
  }
  if (in_flight_.empty()) return false;
  const Work work = in_flight_.front().work;
  const ncclResult_t error = first_async_error();
  if (error != ncclSuccess) {
    give_up(Trouble::kBroken, work, error);
    return true;
  }
  const auto waited = now - last_progress_;
  if (waited >= link_->timeout()) {
    give_up(Trouble::kTimeout, work, ncclInProgress);
    return true;
  }
  if (waited >= kWatchAfter && link_->has_trouble()) {
    give_up(Trouble::kInterrupted, work, ncclInProgress);
    return true;
  }
  return false;
}

ncclResult_t NcclLink::first_async_error() const {
  for (ncclComm_t comm : comms_) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_.async_error(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclSuccess && state != ncclInProgress) return state;
  }
  return ncclSuccess;
}

}  // namespace

std::shared_ptr<DeviceLink> connect_device_link(Device device, std::shared_ptr<RankLink> link,
                                                Communicator& everyone) {
  const std::string problem = why_no_device_link();
  if (!problem.empty()) {
    throw ConfigError(fmt::format(
        "parallel.device is cuda: {}; allowed: one rank, or parallel.device=cpu", problem));
  }
  auto connected = std::make_shared<NcclLink>(device, std::move(link));
  connected->connect(everyone);
  return connected;
}

std::string why_no_device_link() { return nccl().problem; }

}  // namespace grpo::parallel
