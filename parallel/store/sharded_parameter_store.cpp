#include "parallel/store/sharded_parameter_store.h"

#include <algorithm>
#include <utility>

#include "parallel/store/gtp_pass.h"

namespace grpo::parallel {

namespace {

Tensor elements(const Tensor& flat, int64_t begin, int64_t count) {
  return flat.rows(begin, count);
}

}  // namespace

ShardedParameterStore::ShardedParameterStore(std::string name, std::vector<ParameterSpec> specs,
                                             ProcessGroups groups, DType dtype, Gradients gradients,
                                             Allocator& allocator)
    : name_(std::move(name)),
      specs_(std::move(specs)),
      groups_(std::move(groups)),
      dtype_(dtype),
      buffers_(allocator, name_ + "/gather_buffers"),
      communication_(allocator.device()) {
  CHECK(dtype == DType::kFloat32 || dtype == DType::kBfloat16, "weights in {}", dtype_name(dtype));
  place_parameters(allocator, gradients);
  if (gradients == Gradients::kFp32) build_owned_spans();
}

ShardedParameterStore::~ShardedParameterStore() = default;

void ShardedParameterStore::place_parameters(Allocator& allocator, Gradients gradients) {
  int64_t sharded_elements = 0;
  int64_t replicated_elements = 0;
  for (const ParameterSpec& spec : specs_) {
    const bool is_sharded = spec.gtp == GtpPlacement::kSharded;
    int64_t& total = is_sharded ? sharded_elements : replicated_elements;
    Entry entry{.layout = compute_shard_layout(spec, groups_.shard_coordinate()),
                .arena = is_sharded ? &sharded_ : &replicated_,
                .offset = total,
                .is_gathered = is_sharded && groups_.gtp_remat.size() > 1};
    total += entry.layout.num_elements();
    entries_.push_back(std::move(entry));
  }
  const int64_t dp = groups_.dp.size();
  for (auto [arena, total] :
       {std::pair{&sharded_, sharded_elements}, std::pair{&replicated_, replicated_elements}}) {
    arena->chunk_elements = (total + dp - 1) / dp;
    const int64_t size = arena->chunk_elements * dp;
    arena->weights = OwnedTensor(allocator, name_ + "/weights", dtype_, {size});
    if (gradients == Gradients::kNone) continue;
    arena->gradients = OwnedTensor(allocator, name_ + "/gradients", DType::kFloat32, {size});
    if (dp > 1) {
      arena->owned_gradients =
          OwnedTensor(allocator, name_ + "/gradients", DType::kFloat32, {arena->chunk_elements});
    }
  }
}

void ShardedParameterStore::build_owned_spans() {
  for (size_t i = 0; i < specs_.size(); ++i) {
    for (const ShardRegion& region : entries_[i].layout.regions) {
      append_spans(entries_[i], static_cast<ParameterId>(i), region);
    }
  }
}

void ShardedParameterStore::append_spans(const Entry& entry, ParameterId id,
                                         const ShardRegion& region) {
  const Arena& arena = *entry.arena;
  const ParameterSpec& spec = specs_[static_cast<size_t>(id)];
  const int64_t owned_begin = arena.chunk_elements * groups_.dp.rank();
  const int64_t owned_end = owned_begin + arena.chunk_elements;
  const int64_t region_begin = entry.offset + region.stored_row * entry.layout.cols;
  const int64_t region_end = region_begin + region.num_rows * entry.layout.cols;
  const int64_t begin = std::max(region_begin, owned_begin);
  const int64_t end = std::min(region_end, owned_end);
  if (begin >= end) return;
  const int64_t skipped = begin - region_begin;
  const bool replicated_here =
      (spec.gtp == GtpPlacement::kReplicated && groups_.gtp_remat.rank() != 0) ||
      (spec.tp_cut == TpCut::kReplicated && groups_.tp.rank() != 0);
  owned_spans_.push_back(
      {.parameter = id,
       .state_offset = num_owned_elements(),
       .num_elements = end - begin,
       .weight = elements(arena.weights, begin, end - begin),
       .gradient = arena.owned_gradients.is_empty()
                       ? elements(arena.gradients, begin, end - begin)
                       : elements(arena.owned_gradients, begin - owned_begin, end - begin),
       .counts_in_norm = !replicated_here,
       .part = region.part,
       .logical_row = region.logical_row + skipped / entry.layout.cols,
       .logical_col = region.logical_col + skipped % entry.layout.cols});
}

int64_t ShardedParameterStore::num_owned_elements() const {
  return owned_spans_.empty() ? 0
                              : owned_spans_.back().state_offset + owned_spans_.back().num_elements;
}

Tensor ShardedParameterStore::shard(ParameterId id) const {
  const Entry& entry = entries_[static_cast<size_t>(id)];
  return elements(entry.arena->weights, entry.offset, entry.layout.num_elements())
      .reshaped({entry.layout.shard_rows, entry.layout.cols});
}

Tensor ShardedParameterStore::gradient_shard(ParameterId id) const {
  const Entry& entry = entries_[static_cast<size_t>(id)];
  CHECK(!entry.arena->gradients.is_empty(), "store '{}' has no gradients", name_);
  return elements(entry.arena->gradients, entry.offset, entry.layout.num_elements())
      .reshaped({entry.layout.shard_rows, entry.layout.cols});
}

std::unique_ptr<Pass> ShardedParameterStore::begin_pass(const UseSchedule& schedule) {
  return std::make_unique<GtpPass>(*this, schedule);
}

void ShardedParameterStore::poison_weights() {
  for (const Arena* arena : {&sharded_, &replicated_}) {
    const Tensor& weights = arena->weights.view();
    poison_memory(weights.raw(), weights.size_bytes(), weights.device());
  }
  mark_weights_changed();
}

void ShardedParameterStore::zero_gradients() {
  fill_zero(sharded_.gradients);
  fill_zero(replicated_.gradients);
}

void ShardedParameterStore::reduce_gradients() {
  CHECK(!pass_active_, "reduce_gradients during a pass");
  if (groups_.dp.size() == 1) return;
  for (Arena* arena : {&sharded_, &replicated_}) {
    fill_zero(arena->owned_gradients);
    groups_.dp.communicator().reduce_scatter_add(arena->owned_gradients, arena->gradients,
                                                 Stream::none());
  }
}

void ShardedParameterStore::gather_updated_weights() {
  if (groups_.dp.size() > 1) {
    for (Arena* arena : {&sharded_, &replicated_}) {
      const Tensor own = elements(arena->weights, arena->chunk_elements * groups_.dp.rank(),
                                  arena->chunk_elements);
      groups_.dp.communicator().all_gather(arena->weights, own, Stream::none());
    }
  }
  mark_weights_changed();
}

}  // namespace grpo::parallel
