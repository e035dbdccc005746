#include "rl/loop/kept_token_exchange.h"

#include <cstdint>

#include "model/core/errors.h"

namespace grpo::rl {

namespace {

// The sequences that one rank sends to another, in the order of the receiver's micro-batches.
std::vector<size_t> sequences_between(int from, int to, std::span<const RolloutSequence> sequences,
                                      const std::vector<std::vector<MicroBatch>>& assigned) {
  std::vector<size_t> indices;
  for (const MicroBatch& micro_batch : assigned[static_cast<size_t>(to)]) {
    for (const size_t index : micro_batch) {
      if (sequences[index].kept_source.rank == from) indices.push_back(index);
    }
  }
  return indices;
}

int64_t packed_bytes(const RolloutSequence& sequence) {
  return ops::KeptTokens::packed_bytes(static_cast<int64_t>(sequence.response_tokens.size()),
                                       sequence.kept_source.num_ids,
                                       sequence.kept_source.has_thresholds);
}

struct Parcel {
  std::vector<size_t> indices;
  std::vector<std::byte> bytes;

  Parcel(std::vector<size_t> members, std::span<const RolloutSequence> sequences)
      : indices(std::move(members)) {
    int64_t size = 0;
    for (const size_t index : indices) size += packed_bytes(sequences[index]);
    bytes.resize(static_cast<size_t>(size));
  }

  PeerMessage message(int peer) {
    return {peer, Tensor(bytes.data(), DType::kUint8, {static_cast<int64_t>(bytes.size())},
                         Device::cpu())};
  }

  // Calls body(sequence index, its bytes) for each member.
  template <typename Body>
  void for_each(std::span<const RolloutSequence> sequences, const Body& body) {
    size_t offset = 0;
    for (const size_t index : indices) {
      const auto size = static_cast<size_t>(packed_bytes(sequences[index]));
      body(index, std::span(bytes).subspan(offset, size));
      offset += size;
    }
  }
};

}  // namespace

void deliver_kept_tokens(std::span<RolloutSequence> sequences,
                         const std::vector<std::vector<MicroBatch>>& assigned, Communicator& data) {
  std::vector<Parcel> outgoing;
  std::vector<Parcel> incoming;
  std::vector<PeerMessage> sends;
  std::vector<PeerMessage> receives;
  outgoing.reserve(static_cast<size_t>(data.size()));
  incoming.reserve(static_cast<size_t>(data.size()));
  for (int peer = 0; peer < data.size(); ++peer) {
    if (peer == data.rank()) continue;
    Parcel& out =
        outgoing.emplace_back(sequences_between(data.rank(), peer, sequences, assigned), sequences);
    out.for_each(sequences, [&](size_t index, std::span<std::byte> bytes) {
      sequences[index].kept.pack(bytes);
    });
    sends.push_back(out.message(peer));
    Parcel& in =
        incoming.emplace_back(sequences_between(peer, data.rank(), sequences, assigned), sequences);
    receives.push_back(in.message(peer));
  }
  data.exchange(sends, receives, Stream::none());
  for (Parcel& in : incoming) {
    in.for_each(sequences, [&](size_t index, std::span<std::byte> bytes) {
      const RolloutSequence& sequence = sequences[index];
      sequences[index].kept = ops::KeptTokens::unpack(
          bytes, static_cast<int64_t>(sequence.response_tokens.size()),
          sequence.kept_source.num_ids, sequence.kept_source.has_thresholds);
    });
  }
}

}  // namespace grpo::rl
