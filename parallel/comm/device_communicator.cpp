#include "parallel/comm/device_communicator.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "model/core/device_stream.h"
#include "model/core/workspace.h"
#include "model/ops/ordered_sum.h"
#include "parallel/comm/collective_arguments.h"

namespace grpo::parallel {
namespace {

// Sums travel in pieces of this size, which bounds their scratch memory.
constexpr int64_t kMaxPieceElements = int64_t{1} << 23;
// Up to this many elements everybody gets everything; above, each member sums a part.
constexpr int64_t kSmallAllReduceElements = int64_t{1} << 18;

bool is_on_host(const Tensor& tensor) { return tensor.device().kind == DeviceKind::kCpu; }

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::shared_ptr<Communicator> host, std::shared_ptr<DeviceTransport> transport,
                     Allocator& allocator)
      : host_(std::move(host)),
        transport_(std::move(transport)),
        allocator_(allocator),
        no_scratch_(allocator) {}

  const std::string& name() const override { return host_->name(); }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void all_gather(const Tensor& out, const Tensor& in, Stream stream) override;
  void reduce_scatter_add(const Tensor& into, const Tensor& in, Stream stream) override;
  void all_reduce_sum(const Tensor& data, Stream stream) override;
  void broadcast(const Tensor& data, int root, Stream stream) override;
  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                Stream stream) override;
  void barrier() override { host_->barrier(); }

  const CommCounters& counters() const override {
    counters_.num_collectives = num_collectives_ + host_->counters().num_collectives;
    counters_.sent_bytes = sent_bytes_ + host_->counters().sent_bytes;
    return counters_;
  }

 private:
  // Member p's part of a flat tensor is elements [borders[p], borders[p + 1]).
  using Borders = std::vector<int64_t>;

  bool begin(const Tensor& tensor) {
    if (is_on_host(tensor)) return false;
    CHECK(tensor.device() == allocator_.device(), "group '{}' serves {}, the tensor lies on {}",
          name(), device_name(allocator_.device()), device_name(tensor.device()));
    ++num_collectives_;
    return true;
  }
  // For work of `stream`, which comes after all earlier work of this communicator. Memory changes
  // hands in the order of the default stream.
  Tensor scratch(DType dtype, int64_t count, Stream stream) {
    if (scratch_.is_empty() || scratch_.view().num_elements() < count * size_of(dtype)) {
      follow(Stream::none(), stream);
      scratch_ = OwnedTensor();  // before the larger one
      scratch_ =
          OwnedTensor(allocator_, "communication/sums", DType::kUint8, {count * size_of(dtype)});
      follow(stream, Stream::none());
    }
    return Tensor(scratch_.view().raw(), dtype, {count}, allocator_.device());
  }
  // What `later` is given from here on comes after what `earlier` was given.
  void follow(Stream later, Stream earlier) const {
    DeviceEvent event(allocator_.device());
    event.record(earlier);
    event.hold_back(later);
  }
  static int64_t size_of(DType dtype) { return static_cast<int64_t>(dtype_size_bytes(dtype)); }
  void sum(const Tensor& out, std::span<const Tensor> rows, Stream stream) {
    OpContext ctx{allocator_.device(), stream, no_scratch_};
    ops::ordered_sum(out, rows, ctx);
  }
  // out <- the sum over members of their part of this rank's, after what `out` holds when `adds`;
  // `parts` is all of what this rank holds.
  void reduce_parts(const Tensor& out, bool adds, const Tensor& parts, const Borders& borders,
                    const char* operation, Stream stream);
  void all_reduce_small(const Tensor& data, Stream stream);

  std::shared_ptr<Communicator> host_;
  std::shared_ptr<DeviceTransport> transport_;
  Allocator& allocator_;
  Workspace no_scratch_;
  OwnedTensor scratch_;
  int64_t num_collectives_ = 0;
  int64_t sent_bytes_ = 0;
  mutable CommCounters counters_;
};

void DeviceCommunicator::all_gather(const Tensor& out, const Tensor& in, Stream stream) {
  check_all_gather(out, in, size());
  if (!begin(in)) return host_->all_gather(out, in, stream);
  if (in.num_elements() == 0) return;
  sent_bytes_ += static_cast<int64_t>(in.size_bytes()) * (size() - 1);
  transport_->all_gather(out, in, stream);
}

void DeviceCommunicator::reduce_parts(const Tensor& out, bool adds, const Tensor& parts,
                                      const Borders& borders, const char* operation,
                                      Stream stream) {
  const auto me = static_cast<size_t>(rank());
  int64_t longest = 0;
  for (size_t p = 0; p + 1 < borders.size(); ++p) {
    longest = std::max(longest, borders[p + 1] - borders[p]);
  }
  const int64_t row_elements = std::min(longest, kMaxPieceElements);
  const Tensor staging = scratch(parts.dtype(), (size() - 1) * row_elements, stream);
  for (int64_t begin = 0; begin < longest; begin += kMaxPieceElements) {
    const auto piece = [&](size_t member) {
      const int64_t count =
          std::clamp<int64_t>(borders[member + 1] - borders[member] - begin, 0, kMaxPieceElements);
      return parts.rows(count == 0 ? 0 : borders[member] + begin, count);
    };
    const int64_t own_count = piece(me).num_elements();
    const Tensor sum_of_piece = out.rows(own_count == 0 ? 0 : begin, own_count);
    std::vector<PeerMessage> sends, receives;
    std::vector<Tensor> rows;
    if (adds) rows.push_back(sum_of_piece);
    int64_t next_staged = 0;
    for (size_t peer = 0; peer < static_cast<size_t>(size()); ++peer) {
      if (peer == me) {
        rows.push_back(piece(me));
        continue;
      }
      rows.push_back(staging.rows(row_elements * next_staged++, own_count));
      sends.push_back({static_cast<int>(peer), piece(peer)});
      receives.push_back({static_cast<int>(peer), rows.back()});
      sent_bytes_ += static_cast<int64_t>(sends.back().data.size_bytes());
    }
    transport_->exchange(sends, receives, operation, stream);
    if (own_count > 0) sum(sum_of_piece, rows, stream);
  }
}

void DeviceCommunicator::reduce_scatter_add(const Tensor& into, const Tensor& in, Stream stream) {
  check_reduce_scatter(into, in, size());
  if (!begin(in)) return host_->reduce_scatter_add(into, in, stream);
  const int64_t count = into.num_elements();
  if (count == 0) return;
  Borders borders;
  for (int member = 0; member <= size(); ++member) borders.push_back(count * member);
  reduce_parts(into.reshaped({count}), true, in.reshaped({in.num_elements()}), borders,
               "reduce_scatter_add", stream);
}

void DeviceCommunicator::all_reduce_small(const Tensor& data, Stream stream) {
  const int64_t count = data.num_elements();
  const Tensor all = scratch(data.dtype(), count * size(), stream);
  std::vector<Tensor> rows;
  rows.reserve(static_cast<size_t>(size()));
  for (int member = 0; member < size(); ++member) rows.push_back(all.rows(count * member, count));
  copy_tensor(rows[static_cast<size_t>(rank())], data, stream);
  transport_->all_gather(all, rows[static_cast<size_t>(rank())], stream);
  sent_bytes_ += static_cast<int64_t>(data.size_bytes()) * (size() - 1);
  sum(data, rows, stream);
}

void DeviceCommunicator::all_reduce_sum(const Tensor& data, Stream stream) {
  check_all_reduce(data);
  if (!begin(data)) return host_->all_reduce_sum(data, stream);
  const int64_t count = data.num_elements();
  if (count == 0) return;
  const Tensor flat = data.reshaped({count});
  if (count <= kSmallAllReduceElements) return all_reduce_small(flat, stream);
  // Equal parts, so that they can be gathered; the last may be short, or empty.
  const int64_t part = (count + size() - 1) / size();
  const auto border = [&](int member) { return std::min(count, part * member); };
  Borders borders;
  for (int member = 0; member <= size(); ++member) borders.push_back(border(member));
  const Tensor own = flat.rows(border(rank()), border(rank() + 1) - border(rank()));
  reduce_parts(own, false, flat, borders, "all_reduce_sum", stream);
  std::vector<PeerMessage> sends, receives;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    sends.push_back({peer, own});
    receives.push_back({peer, flat.rows(border(peer), border(peer + 1) - border(peer))});
    sent_bytes_ += static_cast<int64_t>(own.size_bytes());
  }
  transport_->exchange(sends, receives, "all_reduce_sum", stream);
}

void DeviceCommunicator::broadcast(const Tensor& data, int root, Stream stream) {
  check_broadcast(root, size());
  if (!begin(data)) return host_->broadcast(data, root, stream);
  if (data.num_elements() == 0) return;
  if (rank() == root) sent_bytes_ += static_cast<int64_t>(data.size_bytes()) * (size() - 1);
  transport_->broadcast(data, root, stream);
}

void DeviceCommunicator::exchange(std::span<const PeerMessage> sends,
                                  std::span<const PeerMessage> receives, Stream stream) {
  check_exchange(sends, receives, size());
  const auto chosen = [](std::span<const PeerMessage> messages, auto wanted) {
    std::vector<PeerMessage> some;
    std::copy_if(messages.begin(), messages.end(), std::back_inserter(some), wanted);
    return some;
  };
  // Also where this member has no host messages: members count their collectives alike.
  const auto is_host = [](const PeerMessage& message) { return is_on_host(message.data); };
  host_->exchange(chosen(sends, is_host), chosen(receives, is_host), stream);
  const auto is_own = [&](const PeerMessage& message) {
    return !is_host(message) && message.peer == rank();
  };
  copy_messages_to_self(chosen(sends, is_own), chosen(receives, is_own), rank(), stream);
  const auto is_remote = [&](const PeerMessage& message) {
    return !is_host(message) && message.peer != rank() && message.data.num_elements() > 0;
  };
  const auto sent = chosen(sends, is_remote);
  const auto received = chosen(receives, is_remote);
  if (sent.empty() && received.empty()) return;
  for (const PeerMessage& message : sent) {
    sent_bytes_ += static_cast<int64_t>(message.data.size_bytes());
  }
  transport_->exchange(sent, received, "exchange", stream);
}

class RehearsalTransport final : public DeviceTransport {
 public:
  void all_gather(const Tensor&, const Tensor&, Stream) override {}
  void broadcast(const Tensor&, int, Stream) override {}
  void exchange(std::span<const PeerMessage>, std::span<const PeerMessage>, const char*,
                Stream) override {}
};

}  // namespace

std::shared_ptr<Communicator> make_device_communicator(std::shared_ptr<Communicator> host,
                                                       std::shared_ptr<DeviceTransport> transport,
                                                       Allocator& allocator) {
  return std::make_shared<DeviceCommunicator>(std::move(host), std::move(transport), allocator);
}

std::shared_ptr<DeviceTransport> make_rehearsal_transport() {
  return std::make_shared<RehearsalTransport>();
}

}  // namespace grpo::parallel
