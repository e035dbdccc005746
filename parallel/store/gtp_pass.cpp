#include "parallel/store/gtp_pass.h"

#include <algorithm>
#include <utility>

#include "model/ops/ordered_sum.h"
#include "model/ops/reduce.h"

namespace grpo::parallel {

namespace {

// Work of the model, on the default stream.
constexpr Stream kWork = Stream::none();

// The largest gather (gate and up projection) takes longer than the product before it (attention
// output), so that one gather ahead would not hide it.
constexpr size_t kGathersAhead = 2;
// Each holds a full-size gradient.
constexpr size_t kScattersBehind = 2;

}  // namespace

GtpPass::GtpPass(ShardedParameterStore& store, const UseSchedule& schedule)
    : store_(store),
      schedule_(schedule),
      contributions_(store.specs_.size(), 0),
      num_ahead_(store.device().kind == DeviceKind::kCuda ? kGathersAhead : 0),
      work_(store.device()) {
  CHECK(!store_.pass_active_, "store '{}' already runs a pass", store_.name());
  bool trains_replicated = false;
  for (const ParameterUse& use : schedule_.uses()) {
    CHECK(use.parameter >= 0 && static_cast<size_t>(use.parameter) < store_.specs_.size());
    if (!use.contributes_gradient) continue;
    ++contributions_[static_cast<size_t>(use.parameter)];
    trains_replicated = trains_replicated || is_replicated(use.parameter);
  }
  if (trains_replicated) {
    replicated_ = store_.buffers_.take(store_.replicated_.gradients.view().size_bytes());
    fill_zero(replicated_gradients());
  }
  store_.pass_active_ = true;
}

GtpPass::~GtpPass() {
  store_.pass_active_ = false;
  // After an exception: whoever gets the memory next comes after what still uses it.
  try {
    for (const GatherAhead& gather : ahead_) gather.arrived.hold_back(kWork);
    for (const PendingScatter& scatter : scatters_) scatter.done.hold_back(kWork);
  } catch (const Error&) {
    // The device failed; nothing is run on it any more.
  }
}

const ParameterUse& GtpPass::expect_next(ParameterId parameter, const char* call) const {
  CHECK(parameter >= 0 && static_cast<size_t>(parameter) < store_.specs_.size());
  const std::string& name = store_.specs_[static_cast<size_t>(parameter)].name;
  CHECK(cursor_ < schedule_.uses().size(), "{}({}) after the schedule's end", call, name);
  const ParameterUse& next = schedule_.uses()[cursor_];
  CHECK(next.parameter == parameter, "{}({}) at use {}, where the schedule has {}", call, name,
        cursor_, store_.specs_[static_cast<size_t>(next.parameter)].name);
  return next;
}

MaterializedWeight GtpPass::use(ParameterId parameter) {
  const ParameterUse& next = expect_next(parameter, "use");
  CHECK(next.reads_weight && !read_done_ && !grad_open_, "use({}) at use {} is not a read",
        store_.specs_[static_cast<size_t>(parameter)].name, cursor_);
  Tensor tensor = materialize(parameter);
  if (next.contributes_gradient) {
    read_done_ = true;
  } else {
    ++cursor_;
  }
  return MaterializedWeight(this, parameter, tensor);
}

Tensor GtpPass::visible(ParameterId parameter, void* data, DType dtype) const {
  const ParameterSpec& spec = store_.specs_[static_cast<size_t>(parameter)];
  const ShardLayout& layout = store_.layout(parameter);
  const Device device = store_.buffers_.allocator().device();
  return spec.is_vector() ? Tensor(data, dtype, {layout.tp_rows}, device)
                          : Tensor(data, dtype, {layout.tp_rows, layout.cols}, device);
}

bool GtpPass::is_replicated(ParameterId parameter) const {
  return store_.entries_[static_cast<size_t>(parameter)].arena == &store_.replicated_;
}

Tensor GtpPass::replicated_gradients() const {
  return Tensor(replicated_.data(), DType::kFloat32,
                {store_.replicated_.gradients.view().num_elements()}, replicated_.device());
}

bool GtpPass::is_gathered(ParameterId parameter) const {
  return store_.entries_[static_cast<size_t>(parameter)].is_gathered;
}

Tensor GtpPass::materialize(ParameterId parameter) {
  if (!is_gathered(parameter)) {
    gathered_.emplace_back(parameter, Buffer());
    return visible(parameter, store_.shard(parameter).raw(), store_.dtype_);
  }
  start_gathers(1);
  CHECK(ahead_.front().use == cursor_, "the gather of use {} comes at use {}", ahead_.front().use,
        cursor_);
  GatherAhead gather = std::move(ahead_.front());
  ahead_.pop_front();
  gather.arrived.hold_back(kWork);
  start_gathers(num_ahead_);
  void* data = gather.buffer.data();
  gathered_.emplace_back(parameter, std::move(gather.buffer));
  return visible(parameter, data, store_.dtype_);
}

void GtpPass::start_gathers(size_t count) {
  const auto& uses = schedule_.uses();
  for (; ahead_.size() < count && next_gather_ < uses.size(); ++next_gather_) {
    const ParameterUse& use = uses[next_gather_];
    if (use.reads_weight && is_gathered(use.parameter)) {
      ahead_.push_back(start_gather(next_gather_));
    }
  }
}

GtpPass::GatherAhead GtpPass::start_gather(size_t use) {
  const ParameterId parameter = schedule_.uses()[use].parameter;
  const auto& entry = store_.entries_[static_cast<size_t>(parameter)];
  const Tensor shard = store_.shard(parameter);
  const int64_t full_elements = entry.layout.padded_rows * entry.layout.cols;
  const size_t full_bytes = static_cast<size_t>(full_elements) * dtype_size_bytes(store_.dtype_);
  GatherAhead gather{use, store_.buffers_.take(full_bytes), DeviceEvent(store_.device())};
  const Tensor full(gather.buffer.data(), store_.dtype_, {full_elements}, gather.buffer.device());
  const Stream stream = store_.communication_.get();
  follow_work();
  store_.groups_.gtp_remat.communicator().all_gather(full, shard.reshaped({shard.num_elements()}),
                                                     stream);
  gather.arrived.record(stream);
  ++store_.counters_.gathers;
  store_.counters_.gathered_bytes += static_cast<int64_t>(full_bytes);
  return gather;
}

void GtpPass::follow_work() {
  work_.record(kWork);
  work_.hold_back(store_.communication_.get());
}

void GtpPass::release(ParameterId parameter) noexcept {
  const auto it = std::find_if(gathered_.rbegin(), gathered_.rend(),
                               [&](const auto& held) { return held.first == parameter; });
  if (it == gathered_.rend()) return;
  if (it->second.data() != nullptr) store_.buffers_.give_back(std::move(it->second));
  gathered_.erase(std::next(it).base());
}

GradientView GtpPass::begin_grad(ParameterId parameter) {
  const ParameterUse& next = expect_next(parameter, "begin_grad");
  CHECK(next.contributes_gradient && !grad_open_ && next.reads_weight == read_done_,
        "begin_grad({}) at use {}", store_.specs_[static_cast<size_t>(parameter)].name, cursor_);
  grad_open_ = true;
  const auto& entry = store_.entries_[static_cast<size_t>(parameter)];
  if (is_replicated(parameter)) {
    const Tensor own = replicated_gradients().rows(entry.offset, entry.layout.num_elements());
    return {visible(parameter, own.raw(), DType::kFloat32), true};
  }
  PendingGradient& pending = pending_[parameter];
  if (pending.num_contributions == 0) {
    pending.buffer = store_.buffers_.take(
        static_cast<size_t>(entry.layout.padded_rows * entry.layout.cols) * sizeof(float));
  }
  return {visible(parameter, pending.buffer.data(), DType::kFloat32),
          pending.num_contributions > 0};
}

void GtpPass::finish_grad(ParameterId parameter) {
  expect_next(parameter, "finish_grad");
  CHECK(grad_open_, "finish_grad without begin_grad");
  grad_open_ = false;
  read_done_ = false;
  ++cursor_;
  const auto it = pending_.find(parameter);
  if (it == pending_.end()) return;
  if (++it->second.num_contributions < contributions_[static_cast<size_t>(parameter)]) return;
  Buffer buffer = std::move(it->second.buffer);
  pending_.erase(it);
  reduce_scatter(parameter, std::move(buffer));
}

void GtpPass::reduce_scatter(ParameterId parameter, Buffer buffer) {
  const ShardLayout& layout = store_.layout(parameter);
  const Device device = buffer.device();
  const Tensor full(buffer.data(), DType::kFloat32, {layout.padded_rows, layout.cols}, device);
  // The tail belongs to no logical row: whatever the buffer held must not reach a shard.
  fill_zero(full.rows(layout.tp_rows, layout.padded_rows - layout.tp_rows));
  settle_scatters(kScattersBehind - 1);
  const Stream stream = store_.communication_.get();
  const Tensor shard = store_.gradient_shard(parameter);
  follow_work();
  if (is_gathered(parameter)) {
    store_.groups_.gtp_remat.communicator().reduce_scatter_add(
        shard.reshaped({shard.num_elements()}), full.reshaped({full.num_elements()}), stream);
    ++store_.counters_.reduce_scatters;
    store_.counters_.reduce_scattered_bytes += static_cast<int64_t>(full.size_bytes());
  } else {
    Workspace no_scratch(store_.buffers_.allocator());
    OpContext ctx{device, stream, no_scratch};
    ops::add_into(shard, full, ctx);
  }
  scatters_.push_back({std::move(buffer), DeviceEvent(device)});
  scatters_.back().done.record(stream);
  if (device.kind == DeviceKind::kCpu) settle_scatters(0);
}

void GtpPass::settle_scatters(size_t count) {
  for (; scatters_.size() > count; scatters_.pop_front()) {
    PendingScatter& oldest = scatters_.front();
    oldest.done.hold_back(kWork);
    store_.buffers_.give_back(std::move(oldest.gradient));
  }
}

void GtpPass::add_replicated_gradients() {
  if (replicated_.data() == nullptr) return;
  const Tensor own = replicated_gradients();
  const AxisGroup& gtp = store_.groups_.gtp_remat;
  std::vector<Tensor> sum{store_.replicated_.gradients};
  Buffer everyones;
  if (gtp.size() > 1) {
    everyones = store_.buffers_.take(own.size_bytes() * static_cast<size_t>(gtp.size()));
    const int64_t count = own.num_elements();
    const Tensor all(everyones.data(), DType::kFloat32, {count * gtp.size()}, own.device());
    gtp.communicator().all_gather(all, own, kWork);
    for (int peer = 0; peer < gtp.size(); ++peer) sum.push_back(all.rows(count * peer, count));
  } else {
    sum.push_back(own);
  }
  Workspace no_scratch(store_.buffers_.allocator());
  OpContext ctx{own.device(), kWork, no_scratch};
  ops::ordered_sum(store_.replicated_.gradients, sum, ctx);
  if (everyones.data() != nullptr) store_.buffers_.give_back(std::move(everyones));
  store_.buffers_.give_back(std::move(replicated_));
}

void GtpPass::finish() {
  CHECK(cursor_ == schedule_.uses().size() && !grad_open_ && !read_done_,
        "pass over '{}' ended at use {} of {}", store_.name(), cursor_, schedule_.uses().size());
  CHECK(gathered_.empty(), "{} weights of '{}' are still materialized", gathered_.size(),
        store_.name());
  CHECK(ahead_.empty(), "{} gathers of '{}' were not used", ahead_.size(), store_.name());
  settle_scatters(0);
  CHECK(pending_.empty(), "{} gradients of '{}' wait for contributions", pending_.size(),
        store_.name());
  add_replicated_gradients();
}

}  // namespace grpo::parallel
