#include "rl/loop/rollout_codec.h"

#include <cstring>
#include <type_traits>

namespace grpo::rl {

namespace {

class Encoder {
 public:
  template <typename T>
  void value(const T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* data = reinterpret_cast<const std::byte*>(&v);
    bytes_.insert(bytes_.end(), data, data + sizeof(T));
  }

  template <typename Container>
  void values(const Container& container) {
    value(static_cast<uint64_t>(container.size()));
    const auto* data = reinterpret_cast<const std::byte*>(container.data());
    bytes_.insert(bytes_.end(), data, data + container.size() * sizeof(*container.data()));
  }

  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool at_end() const { return bytes_.empty(); }

  template <typename T>
  void value(T& v) {
    read(&v, sizeof(T));
  }

  template <typename Container>
  void values(Container& container) {
    uint64_t size = 0;
    value(size);
    CHECK(size <= bytes_.size(), "{} elements in {} bytes", size, bytes_.size());
    container.resize(size);
    read(container.data(), size * sizeof(*container.data()));
  }

 private:
  void read(void* destination, size_t size) {
    CHECK(size <= bytes_.size(), "rollout bytes end early: {} of {}", bytes_.size(), size);
    if (size != 0) std::memcpy(destination, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }

  std::span<const std::byte> bytes_;
};

// One list of fields for both directions.
template <typename Codec, typename Sequence>
void transfer(Codec& codec, Sequence& sequence) {
  codec.value(sequence.group);
  codec.value(sequence.sample);
  codec.value(sequence.example);
  codec.values(sequence.prompt_tokens);
  codec.values(sequence.response_tokens);
  codec.values(sequence.generation_logprobs);
  codec.value(sequence.kept_source);
  codec.value(sequence.finish_reason);
  codec.value(sequence.reward);
  codec.values(sequence.reward_components);
  codec.values(sequence.text);
}

}  // namespace

std::vector<std::byte> encode_sequences(const std::vector<RolloutSequence>& sequences) {
  Encoder encoder;
  for (const RolloutSequence& sequence : sequences) transfer(encoder, sequence);
  return encoder.take();
}

std::vector<RolloutSequence> decode_sequences(std::span<const std::byte> bytes) {
  Decoder decoder(bytes);
  std::vector<RolloutSequence> sequences;
  while (!decoder.at_end()) transfer(decoder, sequences.emplace_back());
  return sequences;
}

}  // namespace grpo::rl
