#include "app/launch/listen_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "model/core/file_descriptor.h"

namespace grpo::app {
namespace {

std::string numeric(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = "";
  if (::getnameinfo(address, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

// Debian's /etc/hosts gives a machine's own name the address 127.0.1.1, which no other machine
// reaches.
bool is_reachable(const std::string& host) {
  return !host.empty() && !host.starts_with("127.") && host != "::1" && !host.starts_with("fe80:");
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const std::string& host, int socket_type, const char* service) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = socket_type;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), service, &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

// The source address of packets to `host`. Connecting a UDP socket sends none.
std::string address_towards(const std::string& host) {
  const auto target = resolve(host, SOCK_DGRAM, "9");
  if (!target) return "";
  const FileDescriptor socket(::socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return "";
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  const bool is_known = ::connect(socket.get(), target->ai_addr, target->ai_addrlen) == 0 &&
                        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0;
  return is_known ? numeric(reinterpret_cast<sockaddr*>(&own), size) : "";
}

std::string address_of(const std::string& name) {
  const auto found = resolve(name, SOCK_STREAM, nullptr);
  return found ? numeric(found->ai_addr, found->ai_addrlen) : "";
}

std::string first_interface() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "";
  std::string host;
  for (const ifaddrs* entry = list; entry != nullptr && host.empty(); entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    host = numeric(entry->ifa_addr, sizeof(sockaddr_in));
  }
  ::freeifaddrs(list);
  return host;
}

}  // namespace

std::string listen_host(const std::optional<std::string>& node_name,
                        const std::optional<std::string>& meeting_point) {
  if (meeting_point) {
    if (const auto host = address_towards(*meeting_point); is_reachable(host)) return host;
  }
  char own_name[256] = "";
  ::gethostname(own_name, sizeof(own_name) - 1);
  for (const std::string& name : {node_name.value_or(""), std::string(own_name)}) {
    if (name.empty()) continue;
    if (const auto host = address_of(name); is_reachable(host)) return host;
  }
  if (const auto host = first_interface(); is_reachable(host)) return host;
  return "127.0.0.1";
}

}  // namespace grpo::app
