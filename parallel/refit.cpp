#include "parallel/refit.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "model/core/counter_rng.h"

namespace grpo::parallel {

namespace {

uint32_t bits_as(DType dtype, const Tensor& tensor, int64_t index) {
  if (tensor.dtype() == DType::kFloat32) {
    const float value = tensor.data<float>()[index];
    return dtype == DType::kFloat32 ? std::bit_cast<uint32_t>(value) : Bfloat16(value).bits;
  }
  const Bfloat16 value = tensor.data<Bfloat16>()[index];
  return dtype == DType::kBfloat16 ? value.bits
                                   : std::bit_cast<uint32_t>(static_cast<float>(value));
}

// Writes bits of `dtype` (the tensor's own) and says whether they differ from what was there.
bool write_bits(const Tensor& tensor, int64_t index, uint32_t bits) {
  if (tensor.dtype() == DType::kFloat32) {
    float& slot = tensor.data<float>()[index];
    const bool changed = std::bit_cast<uint32_t>(slot) != bits;
    slot = std::bit_cast<float>(bits);
    return changed;
  }
  Bfloat16& slot = tensor.data<Bfloat16>()[index];
  const bool changed = slot.bits != bits;
  slot.bits = static_cast<uint16_t>(bits);
  return changed;
}

// Sum over elements of a hash of (tensor, row, column, bits): no order, so any layout gives the
// same value.
uint64_t fingerprint(const ShardedParameterStore& store,
                     const std::vector<FingerprintRegion>& regions, DType dtype) {
  uint64_t sum = 0;
  if (store.device().is_rehearsal) return sum;
  for (const FingerprintRegion& region : regions) {
    const Tensor shard = store.shard(region.parameter);
    for (int64_t r = 0; r < region.num_rows; ++r) {
      const uint64_t row_key =
          mix_bits(region.tensor_key + static_cast<uint64_t>(region.logical_row + r));
      for (int64_t c = 0; c < region.num_cols; ++c) {
        const uint64_t bits =
            bits_as(dtype, shard, (region.row + r) * shard.size(1) + region.col + c);
        const auto column = static_cast<uint64_t>(region.logical_col + c);
        sum += mix_bits(row_key ^ (column * 0x9E3779B97F4A7C15ull + bits));
      }
    }
  }
  return sum;
}

// One direction's messages of a window: a buffer a peer, filled and read task by task.
class Staging {
 public:
  explicit Staging(int num_peers)
      : sizes_(static_cast<size_t>(num_peers), 0), used_(sizes_), buffers_(sizes_.size()) {}

  void add_bytes(int peer, size_t size) { sizes_[static_cast<size_t>(peer)] += size; }

  void allocate(Allocator& allocator) {
    for (size_t peer = 0; peer < sizes_.size(); ++peer) {
      if (sizes_[peer] > 0) buffers_[peer] = allocator.allocate("refit/buckets", sizes_[peer]);
    }
  }

  // The next task's place in a peer's buffer.
  std::byte* next(int peer, size_t size) {
    const auto p = static_cast<size_t>(peer);
    std::byte* place = static_cast<std::byte*>(buffers_[p].data()) + used_[p];
    used_[p] += size;
    return place;
  }

  std::vector<PeerMessage> messages() {
    std::vector<PeerMessage> messages;
    for (size_t peer = 0; peer < buffers_.size(); ++peer) {
      if (sizes_[peer] == 0) continue;
      const Tensor data(buffers_[peer].data(), DType::kUint8, {static_cast<int64_t>(sizes_[peer])},
                        buffers_[peer].device());
      messages.push_back({static_cast<int>(peer), data});
    }
    return messages;
  }

 private:
  std::vector<size_t> sizes_;
  std::vector<size_t> used_;
  std::vector<Buffer> buffers_;
};

class RefitExecution {
 public:
  RefitExecution(const RefitPlan& plan, const ShardedParameterStore& source,
                 ShardedParameterStore& destination, Communicator& world)
      : plan_(plan), source_(source), destination_(destination), world_(world) {}

  void check_agreement() const {
    CHECK(plan_.world_size() == world_.size(), "refit planned for {} ranks, run on {}",
          plan_.world_size(), world_.size());
    CHECK(source_.dtype() == plan_.source_dtype() &&
              destination_.dtype() == plan_.destination_dtype(),
          "refit planned from {} to {}, run from {} to {}", dtype_name(plan_.source_dtype()),
          dtype_name(plan_.destination_dtype()), dtype_name(source_.dtype()),
          dtype_name(destination_.dtype()));
    CHECK(layout_hash(source_.specs(), source_.groups().shard_coordinate()) ==
              plan_.source_layout(world_.rank()),
          "refit planned for another layout of '{}'", source_.name());
    CHECK(layout_hash(destination_.specs(), destination_.groups().shard_coordinate()) ==
              plan_.destination_layout(world_.rank()),
          "refit planned for another layout of '{}'", destination_.name());
    std::vector<int64_t> hashes(static_cast<size_t>(world_.size()));
    int64_t own = static_cast<int64_t>(plan_.hash());
    world_.all_gather(Tensor(hashes.data(), DType::kInt64, {world_.size()}, Device::cpu()),
                      Tensor(&own, DType::kInt64, {1}, Device::cpu()), Stream::none());
    for (size_t rank = 0; rank < hashes.size(); ++rank) {
      CHECK(hashes[rank] == own, "refit plan of rank {} differs from rank {}'s", rank,
            world_.rank());
    }
  }

  // Memory beyond the two models: this window's messages.
  void run_window(size_t begin, size_t end) {
    Staging outgoing(world_.size());
    Staging incoming(world_.size());
    for (size_t i = begin; i < end; ++i) {
      const TransferTask& task = plan_.tasks()[i];
      if (is_from_me(task) && is_to_me(task)) continue;
      if (is_from_me(task)) outgoing.add_bytes(task.destination_rank, wire_bytes(task));
      if (is_to_me(task)) incoming.add_bytes(task.source_rank, wire_bytes(task));
    }
    outgoing.allocate(destination_.allocator());
    incoming.allocate(destination_.allocator());
    for (size_t i = begin; i < end; ++i) {
      const TransferTask& task = plan_.tasks()[i];
      if (is_from_me(task) && is_to_me(task)) {
        copy_local(task);
      } else if (is_from_me(task)) {
        pack(task, outgoing.next(task.destination_rank, wire_bytes(task)));
      }
    }
    world_.exchange(outgoing.messages(), incoming.messages(), Stream::none());
    for (size_t i = begin; i < end; ++i) {
      const TransferTask& task = plan_.tasks()[i];
      if (!is_to_me(task) || is_from_me(task)) continue;
      unpack(task, incoming.next(task.source_rank, wire_bytes(task)));
      remote_bytes_ += static_cast<int64_t>(wire_bytes(task));
    }
  }

  int64_t bytes() const { return bytes_; }
  int64_t remote_bytes() const { return remote_bytes_; }
  int64_t changed_elements() const { return changed_elements_; }

 private:
  size_t wire_bytes(const TransferTask& task) const {
    return static_cast<size_t>(task.num_elements()) * dtype_size_bytes(plan_.wire_dtype());
  }

  bool is_from_me(const TransferTask& task) const { return task.source_rank == world_.rank(); }
  bool is_to_me(const TransferTask& task) const { return task.destination_rank == world_.rank(); }

  void pack(const TransferTask& task, std::byte* out) const {
    if (source_.device().is_rehearsal) return;
    const Tensor shard = source_.shard(task.source_parameter);
    const size_t element_bytes = dtype_size_bytes(plan_.wire_dtype());
    for (int64_t r = 0; r < task.num_rows; ++r) {
      const int64_t first = (task.source_row + r) * shard.size(1) + task.source_col;
      for (int64_t c = 0; c < task.num_cols; ++c, out += element_bytes) {
        const uint32_t bits = bits_as(plan_.wire_dtype(), shard, first + c);
        std::memcpy(out, &bits, element_bytes);
      }
    }
  }

  void unpack(const TransferTask& task, std::byte* in) {
    const Tensor wire(in, plan_.wire_dtype(), {task.num_elements()}, Device::cpu());
    write_rows(task, wire, 0, task.num_cols);
  }

  void copy_local(const TransferTask& task) {
    const Tensor shard = source_.shard(task.source_parameter);
    write_rows(task, shard, task.source_row * shard.size(1) + task.source_col, shard.size(1));
  }

  // Row r comes from elements [first + r * stride, ...) of `from`.
  void write_rows(const TransferTask& task, const Tensor& from, int64_t first, int64_t stride) {
    const Tensor shard = destination_.shard(task.destination_parameter);
    if (shard.device().is_rehearsal) return;
    for (int64_t r = 0; r < task.num_rows; ++r) {
      const int64_t to = (task.destination_row + r) * shard.size(1) + task.destination_col;
      for (int64_t c = 0; c < task.num_cols; ++c) {
        const uint32_t bits = bits_as(shard.dtype(), from, first + r * stride + c);
        changed_elements_ += write_bits(shard, to + c, bits) ? 1 : 0;
      }
    }
    bytes_ += task.num_elements() * static_cast<int64_t>(dtype_size_bytes(shard.dtype()));
  }

  const RefitPlan& plan_;
  const ShardedParameterStore& source_;
  ShardedParameterStore& destination_;
  Communicator& world_;
  int64_t bytes_ = 0;
  int64_t remote_bytes_ = 0;
  int64_t changed_elements_ = 0;
};

uint64_t summed(uint64_t value, Communicator& group) {
  auto signed_value = static_cast<int64_t>(value);
  group.all_reduce_sum(Tensor(&signed_value, DType::kInt64, {1}, Device::cpu()), Stream::none());
  return static_cast<uint64_t>(signed_value);
}

}  // namespace

RefitReport refit(const RefitPlan& plan, const ShardedParameterStore& source,
                  ShardedParameterStore& destination, Communicator& world) {
  const auto start = std::chrono::steady_clock::now();
  RefitExecution execution(plan, source, destination, world);
  execution.check_agreement();
  for (size_t i = 0; i + 1 < plan.window_offsets().size(); ++i) {
    execution.run_window(plan.window_offsets()[i], plan.window_offsets()[i + 1]);
  }
  destination.mark_weights_changed();
  const DType dtype = destination.dtype();
  const uint64_t wanted =
      summed(fingerprint(source, plan.source_fingerprint(world.rank()), dtype), world);
  uint64_t have = fingerprint(destination, plan.destination_fingerprint(world.rank()), dtype);
  if (destination.groups().tp.size() > 1)
    have = summed(have, destination.groups().tp.communicator());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {.bytes = execution.bytes(),
          .remote_bytes = execution.remote_bytes(),
          .changed_elements = execution.changed_elements(),
          .num_windows = static_cast<int64_t>(plan.window_offsets().size()) - 1,
          .seconds = elapsed.count(),
          .source_fingerprint = wanted,
          .destination_fingerprint = have};
}

}  // namespace grpo::parallel
