#include "parallel/refit/refit.h"

#include <chrono>
#include <vector>

#include "model/core/host_transfer.h"
#include "model/ops/region.h"

namespace grpo::parallel {

namespace {

// Sums on the device.
struct Sums {
  explicit Sums(Allocator& allocator) : all(allocator, "refit/sums", DType::kInt64, {3}) {}

  Tensor changed() const { return all.view().rows(0, 1); }  // elements with other bits than before
  Tensor source() const { return all.view().rows(1, 1); }   // fingerprints
  Tensor destination() const { return all.view().rows(2, 1); }

  OwnedTensor all;  // [3] int64
};

// Adds the regions that this rank counts.
void add_fingerprint(const Tensor& sum, const ShardedParameterStore& store,
                     const std::vector<FingerprintRegion>& regions, DType dtype, OpContext& ctx) {
  std::vector<ops::PlacedRegion> placed;
  placed.reserve(regions.size());
  for (const FingerprintRegion& region : regions) {
    placed.push_back({.region = {.matrix = store.shard(region.parameter),
                                 .row = region.row,
                                 .col = region.col,
                                 .num_rows = region.num_rows,
                                 .num_cols = region.num_cols},
                      .place = {.tensor_key = region.tensor_key,
                                .row = region.logical_row,
                                .col = region.logical_col}});
  }
  ops::add_fingerprints(sum, placed, dtype, ctx);
}

// One direction's messages of a window: a buffer a peer, filled and read task by task.
class Staging {
 public:
  Staging(int num_peers, DType dtype)
      : dtype_(dtype),
        sizes_(static_cast<size_t>(num_peers), 0),
        used_(sizes_),
        buffers_(sizes_.size()) {}

  void add_elements(int peer, int64_t count) { sizes_[static_cast<size_t>(peer)] += count; }

  void allocate(Allocator& allocator) {
    for (size_t peer = 0; peer < sizes_.size(); ++peer) {
      if (sizes_[peer] == 0) continue;
      buffers_[peer] = OwnedTensor(allocator, "refit/buckets", dtype_, {sizes_[peer]});
    }
  }

  // The next task's rectangle in a peer's buffer.
  ops::MatrixRegion next(int peer, const TransferTask& task) {
    const auto p = static_cast<size_t>(peer);
    const Tensor place = buffers_[p].view().rows(used_[p], task.num_elements());
    used_[p] += task.num_elements();
    return {.matrix = place.reshaped({task.num_rows, task.num_cols}),
            .row = 0,
            .col = 0,
            .num_rows = task.num_rows,
            .num_cols = task.num_cols};
  }

  std::vector<PeerMessage> messages() const {
    std::vector<PeerMessage> messages;
    for (size_t peer = 0; peer < buffers_.size(); ++peer) {
      if (sizes_[peer] > 0) messages.push_back({static_cast<int>(peer), buffers_[peer]});
    }
    return messages;
  }

 private:
  DType dtype_;
  std::vector<int64_t> sizes_;  // elements
  std::vector<int64_t> used_;
  std::vector<OwnedTensor> buffers_;
};

class RefitExecution {
 public:
  RefitExecution(const RefitPlan& plan, const ShardedParameterStore& source,
                 ShardedParameterStore& destination, Communicator& world, const Tensor& num_changed,
                 OpContext& ctx)
      : plan_(plan),
        source_(source),
        destination_(destination),
        world_(world),
        num_changed_(num_changed),
        ctx_(ctx) {}

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
    Staging outgoing(world_.size(), plan_.wire_dtype());
    Staging incoming(world_.size(), plan_.wire_dtype());
    for (size_t i = begin; i < end; ++i) {
      const TransferTask& task = plan_.tasks()[i];
      if (is_from_me(task) && is_to_me(task)) continue;
      if (is_from_me(task)) outgoing.add_elements(task.destination_rank, task.num_elements());
      if (is_to_me(task)) incoming.add_elements(task.source_rank, task.num_elements());
    }
    outgoing.allocate(destination_.allocator());
    incoming.allocate(destination_.allocator());
    std::vector<ops::RegionCopy> local, sent, received;
    for (size_t i = begin; i < end; ++i) {
      const TransferTask& task = plan_.tasks()[i];
      if (is_from_me(task) && is_to_me(task)) {
        local.push_back({place_of(task), source_region(task)});
      } else if (is_from_me(task)) {
        sent.push_back({outgoing.next(task.destination_rank, task), source_region(task)});
      } else if (is_to_me(task)) {
        received.push_back({place_of(task), incoming.next(task.source_rank, task)});
        remote_bytes_ += task.num_elements() * size_of(plan_.wire_dtype());
      }
    }
    ops::copy_regions(sent, Tensor(), ctx_);
    world_.exchange(outgoing.messages(), incoming.messages(), ctx_.stream);
    ops::copy_regions(local, num_changed_, ctx_);
    ops::copy_regions(received, num_changed_, ctx_);
  }

  int64_t bytes() const { return bytes_; }
  int64_t remote_bytes() const { return remote_bytes_; }

 private:
  static int64_t size_of(DType dtype) { return static_cast<int64_t>(dtype_size_bytes(dtype)); }

  bool is_from_me(const TransferTask& task) const { return task.source_rank == world_.rank(); }
  bool is_to_me(const TransferTask& task) const { return task.destination_rank == world_.rank(); }

  ops::MatrixRegion source_region(const TransferTask& task) const {
    return {.matrix = source_.shard(task.source_parameter),
            .row = task.source_row,
            .col = task.source_col,
            .num_rows = task.num_rows,
            .num_cols = task.num_cols};
  }

  // Where a task goes in the generation model; counts its bytes.
  ops::MatrixRegion place_of(const TransferTask& task) {
    bytes_ += task.num_elements() * size_of(destination_.dtype());
    return {.matrix = destination_.shard(task.destination_parameter),
            .row = task.destination_row,
            .col = task.destination_col,
            .num_rows = task.num_rows,
            .num_cols = task.num_cols};
  }

  const RefitPlan& plan_;
  const ShardedParameterStore& source_;
  ShardedParameterStore& destination_;
  Communicator& world_;
  Tensor num_changed_;  // [1] int64
  OpContext& ctx_;
  int64_t bytes_ = 0;
  int64_t remote_bytes_ = 0;
};

uint64_t summed(uint64_t value, Communicator& group) {
  auto signed_value = static_cast<int64_t>(value);
  group.all_reduce_sum(Tensor(&signed_value, DType::kInt64, {1}, Device::cpu()), Stream::none());
  return static_cast<uint64_t>(signed_value);
}

}  // namespace

void connect_for_refit(ShardedParameterStore& destination, Communicator& world) {
  if (world.size() == 1) return;
  const OwnedTensor greetings(destination.allocator(), "refit/greetings", destination.dtype(),
                              {2 * int64_t{world.size()}});
  std::vector<PeerMessage> sends, receives;
  for (int peer = 0; peer < world.size(); ++peer) {
    if (peer == world.rank()) continue;
    sends.push_back({peer, greetings.view().rows(2 * peer, 1)});
    receives.push_back({peer, greetings.view().rows(2 * peer + 1, 1)});
  }
  world.exchange(sends, receives, Stream::none());
}

RefitReport refit(const RefitPlan& plan, const ShardedParameterStore& source,
                  ShardedParameterStore& destination, Communicator& world) {
  const auto start = std::chrono::steady_clock::now();
  const Sums sums(destination.allocator());
  Workspace scratch(destination.allocator());
  OpContext ctx{destination.device(), Stream::none(), scratch};
  RefitExecution execution(plan, source, destination, world, sums.changed(), ctx);
  execution.check_agreement();
  for (size_t i = 0; i + 1 < plan.window_offsets().size(); ++i) {
    execution.run_window(plan.window_offsets()[i], plan.window_offsets()[i + 1]);
  }
  destination.mark_weights_changed();
  const DType dtype = destination.dtype();
  const auto value = [&](const Tensor& sum) { return to_host<int64_t>(sum, ctx.stream)[0]; };
  add_fingerprint(sums.source(), source, plan.source_fingerprint(world.rank()), dtype, ctx);
  const uint64_t wanted = summed(static_cast<uint64_t>(value(sums.source())), world);
  add_fingerprint(sums.destination(), destination, plan.destination_fingerprint(world.rank()),
                  dtype, ctx);
  auto have = static_cast<uint64_t>(value(sums.destination()));
  if (destination.groups().tp.size() > 1) {
    have = summed(have, destination.groups().tp.communicator());
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {.bytes = execution.bytes(),
          .remote_bytes = execution.remote_bytes(),
          .changed_elements = value(sums.changed()),
          .num_windows = static_cast<int64_t>(plan.window_offsets().size()) - 1,
          .seconds = elapsed.count(),
          .source_fingerprint = wanted,
          .destination_fingerprint = have};
}

}  // namespace grpo::parallel
