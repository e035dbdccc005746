// Owned device memory. Every allocation is named and counted, so that peaks can be reported by
// phase.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "model/core/cuda_blocks.h"
#include "model/core/device.h"

namespace grpo {

class Allocator;

// Move-only owner of one allocation; the allocator outlives it. Memory starts zeroed (or poisoned,
// see Allocator).
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  Device device() const;

 private:
  friend class Allocator;
  Buffer(Allocator* allocator, std::string name, void* data, size_t size_bytes)
      : allocator_(allocator), name_(std::move(name)), data_(data), size_bytes_(size_bytes) {}
  void release() noexcept;

  Allocator* allocator_ = nullptr;
  std::string name_;
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// Bytes by owner.
using OwnerBytes = std::map<std::string, size_t>;

// What memory is taken from the workspace for.
enum class ScratchOwner : uint8_t { kActivations, kLogits, kOperators };

// Bytes taken from the workspace at once, by ScratchOwner.
struct WorkspaceUse {
  std::array<size_t, 3> bytes{};

  size_t& operator[](ScratchOwner owner) { return bytes[static_cast<size_t>(owner)]; }
  size_t operator[](ScratchOwner owner) const { return bytes[static_cast<size_t>(owner)]; }
  size_t total() const { return bytes[0] + bytes[1] + bytes[2]; }
};

// The moment of a phase at which the most memory was in use.
struct PhasePeak {
  size_t bytes = 0;
  OwnerBytes by_owner;     // sums to `bytes`
  WorkspaceUse workspace;  // when the most of it was taken, which may be another moment
};

// Allocates on one device and keeps the books of one rank. Thread-safe. On a rehearsal device it
// reserves addresses and no memory.
class Allocator {
 public:
  explicit Allocator(Device device) : device_(device), cuda_blocks_(device) {}
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // Zero-filled memory aligned to 64 bytes (256 on a CUDA device); `name` is the owner shown in
  // memory reports. Throws Error when out of memory, naming phase, owner and size; CudaError when
  // the device fails otherwise.
  Buffer allocate(const std::string& name, size_t size_bytes);

  Device device() const { return device_; }

  // Starts a phase of the memory report ("generation", "policy_training", ...).
  void set_phase(const std::string& phase);
  size_t live_bytes() const;
  std::map<std::string, PhasePeak> peaks() const;  // by phase
  std::map<std::string, size_t> peak_bytes_by_phase() const;

  // The workspace reports what is taken from it.
  void note_workspace_use(const WorkspaceUse& use);

  // Tests: fill memory with NaN bit patterns when a scratch buffer is handed out or back.
  void set_poison_scratch(bool poison) { poison_scratch_ = poison; }
  bool poison_scratch() const { return poison_scratch_; }

 private:
  friend class Buffer;
  void free(const std::string& name, void* data, size_t size_bytes) noexcept;
  void update_peak();

  Device device_;
  CudaBlocks cuda_blocks_;  // unused elsewhere
  bool poison_scratch_ = false;
  mutable std::mutex mutex_;
  std::string phase_ = "setup";
  size_t live_bytes_ = 0;
  OwnerBytes live_by_name_;
  std::map<std::string, PhasePeak> peak_by_phase_;
};

// Fills memory with 0xFF bytes: NaN in every float type, -1 in every integer type. On a CUDA device
// this is work of the default stream.
void poison_memory(void* data, size_t size_bytes, Device device);

}  // namespace grpo
