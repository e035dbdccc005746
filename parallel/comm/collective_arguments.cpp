#include "parallel/comm/collective_arguments.h"

namespace grpo::parallel {

void check_all_gather(const Tensor& out, const Tensor& in, int size) {
  CHECK(out.dtype() == in.dtype() && out.num_elements() == in.num_elements() * size,
        "all_gather of {} {} over {} ranks into {} {}", dtype_name(in.dtype()),
        in.shape().to_string(), size, dtype_name(out.dtype()), out.shape().to_string());
}

void check_reduce_scatter(const Tensor& out, const Tensor& in, int size) {
  CHECK(out.dtype() == DType::kFloat32 && in.dtype() == DType::kFloat32 &&
            in.num_elements() == out.num_elements() * size,
        "reduce_scatter_add of {} {} over {} ranks into {} {}", dtype_name(in.dtype()),
        in.shape().to_string(), size, dtype_name(out.dtype()), out.shape().to_string());
}

void check_all_reduce(const Tensor& data) {
  CHECK(data.dtype() == DType::kFloat32 || data.dtype() == DType::kInt64, "all_reduce_sum of {}",
        dtype_name(data.dtype()));
}

void check_broadcast(int root, int size) {
  CHECK(root >= 0 && root < size, "broadcast from rank {} of {}", root, size);
}

void check_exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                    int size) {
  for (const auto& messages : {sends, receives}) {
    for (const auto& message : messages) {
      CHECK(message.peer >= 0 && message.peer < size, "message of an exchange with rank {} of {}",
            message.peer, size);
    }
  }
}

void copy_messages_to_self(std::span<const PeerMessage> sends,
                           std::span<const PeerMessage> receives, int rank, Stream stream) {
  const auto next_of_own = [rank](std::span<const PeerMessage> messages, size_t from) {
    while (from < messages.size() && messages[from].peer != rank) ++from;
    return from;
  };
  size_t send = next_of_own(sends, 0);
  size_t receive = next_of_own(receives, 0);
  while (send < sends.size() && receive < receives.size()) {
    copy_tensor(receives[receive].data, sends[send].data, stream);
    send = next_of_own(sends, send + 1);
    receive = next_of_own(receives, receive + 1);
  }
  CHECK(send == sends.size() && receive == receives.size(),
        "rank {} sends itself another number of messages than it receives", rank);
}

}  // namespace grpo::parallel
