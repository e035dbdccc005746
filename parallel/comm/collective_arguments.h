// The rules every Communicator holds its callers to, and the messages a rank sends to itself.
#pragma once

#include <span>

#include "model/core/communicator.h"

namespace grpo::parallel {

// Throw InternalError when an argument breaks the contract of Communicator for a group of `size`.
void check_all_gather(const Tensor& out, const Tensor& in, int size);
void check_reduce_scatter(const Tensor& out, const Tensor& in, int size);
void check_all_reduce(const Tensor& data);
void check_broadcast(int root, int size);
void check_exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                    int size);

// Copies the messages from `rank` to itself; the k-th sent goes to the k-th received.
void copy_messages_to_self(std::span<const PeerMessage> sends,
                           std::span<const PeerMessage> receives, int rank, Stream stream);

}  // namespace grpo::parallel
