#include "model/core/errors.h"
#include "model/files/safetensors.h"
#include "tests/fuzz/fuzz_targets.h"

namespace grpo::fuzz {

namespace {

// Reads every byte, so that a span outside the file shows.
uint8_t xor_of(std::span<const std::byte> bytes) {
  uint8_t all = 0;
  for (const std::byte byte : bytes) all = static_cast<uint8_t>(all ^ static_cast<uint8_t>(byte));
  return all;
}

}  // namespace

void fuzz_safetensors(std::string_view bytes) {
  const std::string path = scratch_file("weights/model.safetensors", bytes);
  try {
    const model::SafetensorsFile file(path);
    volatile uint8_t sink = 0;
    size_t total = 0;
    for (const model::TensorInfo& info : file.tensors()) {
      CHECK(file.find(info.name) != nullptr, "a listed tensor is not found");
      CHECK(file.bytes(info.name).size() == info.size_bytes(), "a tensor of another size");
      sink = static_cast<uint8_t>(sink ^ xor_of(file.bytes(info.name)));
      total += info.size_bytes();
    }
    CHECK(total <= bytes.size(), "{} tensor bytes in a file of {}", total, bytes.size());
    const model::WeightsDirectory directory(scratch_folder() + "/weights");
    for (const std::string& name : directory.names()) directory.find(name);
  } catch (const DataError&) {
  }
}

}  // namespace grpo::fuzz
