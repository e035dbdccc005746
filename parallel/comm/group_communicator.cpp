#include "parallel/comm/group_communicator.h"

#include <algorithm>
#include <array>

#include "parallel/comm/collective_arguments.h"

namespace grpo::parallel {
namespace {

enum class Operation : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kExchange,
  kBarrier
};

const char* operation_name(Operation operation) {
  switch (operation) {
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kReduceScatter:
      return "reduce_scatter_add";
    case Operation::kAllReduce:
      return "all_reduce_sum";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kExchange:
      return "exchange";
    case Operation::kBarrier:
      return "barrier";
  }
  return "";
}

// Sums travel in pieces of this size, which bounds the scratch memory to one piece a peer.
constexpr int64_t kMaxPieceElements = int64_t{1} << 19;
// Below this many elements one round of "everybody gets everything" beats two rounds.
constexpr int64_t kSmallAllReduceElements = 2048;

// Sums wrap for integers; signed overflow would be undefined, so int64 tensors are added as uint64.
// out[i] = rows[0][i] + rows[1][i] + ... in this order; `out` may be one of the rows.
template <typename T>
void sum_rows(T* out, std::span<const T* const> rows, int64_t count) {
  constexpr int64_t kBlock = 1024;
  std::array<T, kBlock> sums;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    std::copy_n(rows[0] + begin, size, sums.data());
    for (const T* row : rows.subspan(1)) {
      for (int64_t i = 0; i < size; ++i) sums[static_cast<size_t>(i)] += row[begin + i];
    }
    std::copy_n(sums.data(), size, out + begin);
  }
}

class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(std::shared_ptr<RankLink> link, std::vector<int> ranks, const std::string& name,
                    uint64_t group_id)
      : link_(std::move(link)), ranks_(std::move(ranks)), name_(name), group_id_(group_id) {
    const auto own = std::find(ranks_.begin(), ranks_.end(), link_->rank());
    rank_ = static_cast<int>(own - ranks_.begin());
  }

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  const CommCounters& counters() const override { return counters_; }

  void all_gather(const Tensor& out, const Tensor& in, Stream) override;
  void reduce_scatter_add(const Tensor& into, const Tensor& in, Stream) override;
  void all_reduce_sum(const Tensor& data, Stream) override;
  void broadcast(const Tensor& data, int root, Stream) override;
  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                Stream) override;
  void barrier() override;

 private:
  // A run of bytes for, or from, another member; `index` tells apart messages of one collective
  // between two ranks.
  struct Piece {
    int peer;
    void* data;
    size_t size_bytes;
    uint64_t index;
  };

  void begin(Operation operation) {
    operation_ = operation;
    ++sequence_;
    ++counters_.num_collectives;
  }
  // Sends and receives those pieces that are not empty.
  void transfer(const std::vector<Piece>& sends, const std::vector<Piece>& receives);
  WireMessage wire_message(const Piece& piece) const;
  template <typename Function>
  void for_each_peer(Function function) const {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_) function(peer);
    }
  }
  template <typename T>
  T* scratch(int64_t count) {
    scratch_.resize(
        std::max(scratch_.size(), static_cast<size_t>(count) * sizeof(T) / sizeof(uint64_t) + 1));
    return reinterpret_cast<T*>(scratch_.data());
  }
  // out [counts(rank)] <- the sum over members of their `inputs`, after what `out` holds when
  // `adds`: inputs(p) is what this rank holds for member p, and inputs(rank) what it holds for
  // itself; counts(p) elements go to member p.
  template <typename T, typename Inputs, typename Counts>
  void reduce_pieces(T* out, bool adds, Inputs inputs, Counts counts);
  template <typename T>
  void all_reduce(T* data, int64_t count);
  template <typename T>
  void all_reduce_small(T* data, int64_t count);
  void gather_bytes(std::byte* out, const std::vector<size_t>& borders);

  std::shared_ptr<RankLink> link_;
  std::vector<int> ranks_;  // world rank of each member
  std::string name_;
  uint64_t group_id_;
  int rank_ = 0;
  Operation operation_ = Operation::kBarrier;
  uint64_t sequence_ = 0;  // collectives begun
  CommCounters counters_;
  std::vector<uint64_t> scratch_;
};

// The slot covers all that sender and receiver must agree on. Members that disagree on operation or
// size thus wait for each other until the timeout names both, instead of taking each other's bytes
// for something else.
WireMessage GroupCommunicator::wire_message(const Piece& piece) const {
  uint64_t slot = mix_hash(group_id_, sequence_);
  slot = mix_hash(slot, static_cast<uint64_t>(operation_));
  slot = mix_hash(slot, piece.index);
  slot = mix_hash(slot, piece.size_bytes);
  return {ranks_[static_cast<size_t>(piece.peer)], piece.data, piece.size_bytes, slot};
}

void GroupCommunicator::transfer(const std::vector<Piece>& sends,
                                 const std::vector<Piece>& receives) {
  std::vector<WireMessage> wire_sends, wire_receives;
  wire_sends.reserve(sends.size());
  wire_receives.reserve(receives.size());
  for (const Piece& piece : sends) {
    if (piece.size_bytes == 0) continue;
    wire_sends.push_back(wire_message(piece));
    counters_.sent_bytes += static_cast<int64_t>(piece.size_bytes);
  }
  for (const Piece& piece : receives) {
    if (piece.size_bytes != 0) wire_receives.push_back(wire_message(piece));
  }
  if (wire_sends.empty() && wire_receives.empty()) return;
  link_->transfer(operation_name(operation_), name_, wire_sends, wire_receives);
}

// Member p's part of `out` is bytes [borders[p], borders[p + 1]); the own part is in place.
void GroupCommunicator::gather_bytes(std::byte* out, const std::vector<size_t>& borders) {
  std::vector<Piece> sends, receives;
  const auto part = [&](int member, int peer) {
    const auto m = static_cast<size_t>(member);
    return Piece{peer, out + borders[m], borders[m + 1] - borders[m], ~uint64_t{0}};
  };
  for_each_peer([&](int peer) {
    sends.push_back(part(rank_, peer));
    receives.push_back(part(peer, peer));
  });
  transfer(sends, receives);
}

void GroupCommunicator::all_gather(const Tensor& out, const Tensor& in, Stream) {
  check_all_gather(out, in, size());
  begin(Operation::kAllGather);
  if (in.num_elements() == 0) return;
  std::vector<size_t> borders;
  for (int member = 0; member <= size(); ++member) {
    borders.push_back(static_cast<size_t>(member) * in.size_bytes());
  }
  auto* bytes = static_cast<std::byte*>(out.raw());
  std::byte* own = bytes + borders[static_cast<size_t>(rank_)];
  if (own != in.raw()) std::copy_n(static_cast<const std::byte*>(in.raw()), in.size_bytes(), own);
  gather_bytes(bytes, borders);
}

template <typename T, typename Inputs, typename Counts>
void GroupCommunicator::reduce_pieces(T* out, bool adds, Inputs inputs, Counts counts) {
  int64_t longest = 0;
  for (int member = 0; member < size(); ++member) longest = std::max(longest, counts(member));
  T* received = scratch<T>(std::min(longest, kMaxPieceElements) * size());
  std::vector<Piece> sends, receives;
  const size_t first_row = adds ? 1 : 0;
  std::vector<const T*> rows(first_row + ranks_.size());
  const auto row_of = [&](int member) -> const T*& {
    return rows[first_row + static_cast<size_t>(member)];
  };
  for (int64_t begin = 0; begin < longest; begin += kMaxPieceElements) {
    const auto piece_count = [&](int member) {
      return std::clamp<int64_t>(counts(member) - begin, 0, kMaxPieceElements);
    };
    const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(T); };
    const auto index = static_cast<uint64_t>(begin);
    const int64_t own_count = piece_count(rank_);
    sends.clear();
    receives.clear();
    if (adds) rows[0] = out + begin;
    row_of(rank_) = inputs(rank_) + begin;
    for_each_peer([&](int peer) {
      T* row = received + peer * own_count;
      row_of(peer) = row;
      sends.push_back({peer, inputs(peer) + begin, bytes(piece_count(peer)), index});
      receives.push_back({peer, row, bytes(own_count), index});
    });
    transfer(sends, receives);
    sum_rows<T>(out + begin, rows, own_count);
  }
}

void GroupCommunicator::reduce_scatter_add(const Tensor& into, const Tensor& in, Stream) {
  check_reduce_scatter(into, in, size());
  begin(Operation::kReduceScatter);
  const int64_t count = into.num_elements();
  if (count == 0) return;
  auto* parts = in.data<float>();
  reduce_pieces(
      into.data<float>(), true, [&](int member) { return parts + member * count; },
      [&](int) { return count; });
}

template <typename T>
void GroupCommunicator::all_reduce_small(T* data, int64_t count) {
  T* rows_data = scratch<T>(count * size());
  const size_t row_bytes = static_cast<size_t>(count) * sizeof(T);
  std::vector<size_t> borders;
  std::vector<const T*> rows;
  for (int member = 0; member <= size(); ++member) {
    borders.push_back(static_cast<size_t>(member) * row_bytes);
    if (member < size()) rows.push_back(rows_data + member * count);
  }
  std::copy_n(data, count, rows_data + rank_ * count);
  gather_bytes(reinterpret_cast<std::byte*>(rows_data), borders);
  sum_rows<T>(data, rows, count);
}

// Each member sums one segment, then all gather the segments.
template <typename T>
void GroupCommunicator::all_reduce(T* data, int64_t count) {
  if (count == 0) return;
  if (count <= kSmallAllReduceElements) return all_reduce_small(data, count);
  const auto border = [&](int member) { return count * member / size(); };
  reduce_pieces(
      data + border(rank_), false, [&](int member) { return data + border(member); },
      [&](int member) { return border(member + 1) - border(member); });
  std::vector<size_t> borders;
  for (int member = 0; member <= size(); ++member) {
    borders.push_back(static_cast<size_t>(border(member)) * sizeof(T));
  }
  gather_bytes(reinterpret_cast<std::byte*>(data), borders);
}

void GroupCommunicator::all_reduce_sum(const Tensor& data, Stream) {
  check_all_reduce(data);
  begin(Operation::kAllReduce);
  if (data.dtype() == DType::kFloat32) {
    all_reduce(data.data<float>(), data.num_elements());
  } else {
    all_reduce(reinterpret_cast<uint64_t*>(data.data<int64_t>()), data.num_elements());
  }
}

void GroupCommunicator::broadcast(const Tensor& data, int root, Stream) {
  check_broadcast(root, size());
  begin(Operation::kBroadcast);
  std::vector<Piece> sends, receives;
  if (rank_ == root) {
    for_each_peer([&](int peer) { sends.push_back({peer, data.raw(), data.size_bytes(), 0}); });
  } else {
    receives.push_back({root, data.raw(), data.size_bytes(), 0});
  }
  transfer(sends, receives);
}

void GroupCommunicator::exchange(std::span<const PeerMessage> sends,
                                 std::span<const PeerMessage> receives, Stream stream) {
  check_exchange(sends, receives, size());
  begin(Operation::kExchange);
  const auto pieces_of = [&](std::span<const PeerMessage> messages) {
    std::vector<Piece> pieces;
    std::vector<uint64_t> num_messages(ranks_.size(), 0);
    for (const auto& [peer, data] : messages) {
      const uint64_t index = num_messages[static_cast<size_t>(peer)]++;
      if (peer != rank_) pieces.push_back({peer, data.raw(), data.size_bytes(), index});
    }
    return pieces;
  };
  copy_messages_to_self(sends, receives, rank_, stream);
  transfer(pieces_of(sends), pieces_of(receives));
}

void GroupCommunicator::barrier() {
  begin(Operation::kBarrier);
  std::vector<uint8_t> tokens(ranks_.size());
  uint8_t own = 0;
  std::vector<Piece> sends, receives;
  for_each_peer([&](int peer) {
    sends.push_back({peer, &own, 1, 0});
    receives.push_back({peer, &tokens[static_cast<size_t>(peer)], 1, 0});
  });
  transfer(sends, receives);
}

}  // namespace

uint64_t mix_hash(uint64_t hash, uint64_t value) {
  // The finalizer of SplitMix64 (Steele, Lea, Flood 2014) over a running state.
  uint64_t x = hash * 0x9e3779b97f4a7c15u + value + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::shared_ptr<Communicator> make_group_communicator(std::shared_ptr<RankLink> link,
                                                      std::vector<int> ranks,
                                                      const std::string& name, uint64_t group_id) {
  return std::make_shared<GroupCommunicator>(std::move(link), std::move(ranks), name, group_id);
}

}  // namespace grpo::parallel
