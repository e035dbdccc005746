#include "model/core/workspace.h"
#include "model/ops/reduce.h"
#include "parallel/comm/collective_arguments.h"
#include "parallel/comm/world.h"

namespace grpo::parallel {
namespace {

class SoloCommunicator final : public Communicator {
 public:
  explicit SoloCommunicator(const std::string& name) : name_(name) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  void all_gather(const Tensor& out, const Tensor& in, Stream stream) override {
    check_all_gather(out, in, 1);
    ++counters_.num_collectives;
    copy_tensor(out, in, stream);
  }

  void reduce_scatter_add(const Tensor& into, const Tensor& in, Stream stream) override {
    check_reduce_scatter(into, in, 1);
    ++counters_.num_collectives;
    Allocator allocator(into.device());
    Workspace no_scratch(allocator);
    OpContext ctx{into.device(), stream, no_scratch};
    ops::add_into(into, in, ctx);
  }

  void all_reduce_sum(const Tensor& data, Stream) override {
    check_all_reduce(data);
    ++counters_.num_collectives;
  }

  void broadcast(const Tensor&, int root, Stream) override {
    check_broadcast(root, 1);
    ++counters_.num_collectives;
  }

  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                Stream stream) override {
    check_exchange(sends, receives, 1);
    ++counters_.num_collectives;
    copy_messages_to_self(sends, receives, 0, stream);
  }

  void barrier() override { ++counters_.num_collectives; }

  const CommCounters& counters() const override { return counters_; }

 private:
  std::string name_;
  CommCounters counters_;
};

}  // namespace

std::shared_ptr<Communicator> make_solo_communicator(const std::string& name) {
  return std::make_shared<SoloCommunicator>(name);
}

}  // namespace grpo::parallel
