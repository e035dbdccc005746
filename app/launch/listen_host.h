// The address on which a rank listens when ranks run on several machines.
#pragma once

#include <optional>
#include <string>

namespace grpo::app {

// A numeric address of this machine that others can reach. In this order: the one from which
// `meeting_point` (a host every rank can reach, such as the launcher's) is reached; the one that
// `node_name`, or else the host's name, stands for; that of the first network interface that is up.
// Loopback only when there is nothing else.
std::string listen_host(const std::optional<std::string>& node_name,
                        const std::optional<std::string>& meeting_point);

}  // namespace grpo::app
