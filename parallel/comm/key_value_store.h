// KeyValueStore: the few bytes ranks exchange outside collectives: addresses at start, the first
// failure, and who waits for whom when something hangs.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace grpo::parallel {

// Thread-safe. Values are immutable: the first set_if_absent of a key wins, on every rank.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  // True when this call wrote the value; false when the key already had one.
  virtual bool set_if_absent(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;

  // Polls until the key has a value; nullopt after `timeout`.
  std::optional<std::string> wait(const std::string& key, std::chrono::milliseconds timeout);
};

// Within one process: ranks as threads.
std::shared_ptr<KeyValueStore> make_memory_store();

// In a folder that every rank can reach; a key is a file made by an atomic link. The folder must be
// fresh for each launch (its name carries a nonce). Throws ConfigError when it cannot be made or
// written.
std::shared_ptr<KeyValueStore> make_file_store(const std::filesystem::path& folder);

}  // namespace grpo::parallel
