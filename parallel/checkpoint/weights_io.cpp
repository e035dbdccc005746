#include "parallel/checkpoint/weights_io.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "model/core/counter_rng.h"
#include "model/core/host_transfer.h"
#include "model/files/json_text.h"

namespace grpo::parallel {

namespace {

template <typename Function>
void for_each_region(const ShardedParameterStore& store, const Function& function) {
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    for (const ShardRegion& region : store.layout(id).regions) {
      function(id, store.specs()[i].parts[static_cast<size_t>(region.part)], region);
    }
  }
}

void set_element(const Tensor& tensor, int64_t index, float value) {
  if (tensor.dtype() == DType::kFloat32) {
    tensor.data<float>()[index] = value;
  } else {
    tensor.data<Bfloat16>()[index] = Bfloat16(value);
  }
}

// Calls function(begin, end) for ranges of the region's rows, on several threads where there is
// much to do.
template <typename Function>
void for_row_ranges(const ShardRegion& region, const Function& function) {
  constexpr int64_t kElementsPerThread = int64_t{1} << 20;
  const int64_t num_threads =
      std::clamp<int64_t>(region.num_rows * region.num_cols / kElementsPerThread, 1,
                          std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::jthread> threads;
  for (int64_t i = 1; i < num_threads; ++i) {
    threads.emplace_back(function, region.num_rows * i / num_threads,
                         region.num_rows * (i + 1) / num_threads);
  }
  function(0, region.num_rows / num_threads);
}

float element(const Tensor& tensor, int64_t index) {
  return tensor.dtype() == DType::kFloat32 ? tensor.data<float>()[index]
                                           : static_cast<float>(tensor.data<Bfloat16>()[index]);
}

void convert_elements(const Tensor& destination, const Tensor& source) {
  for (int64_t i = 0; i < source.num_elements(); ++i)
    set_element(destination, i, element(source, i));
}

float element_of_file(std::span<const std::byte> bytes, DType dtype, int64_t index) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * 4, 4);
    return value;
  }
  Bfloat16 value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * 2, 2);
  return static_cast<float>(value);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

void check_tensor(const model::WeightsDirectory& weights, const LogicalTensor& part) {
  const model::TensorInfo* info = weights.find(part.name);
  if (info == nullptr) {
    throw DataError(
        fmt::format("{}: tensor '{}' is missing", weights.file_of(part.name), part.name));
  }
  std::vector<int64_t> expected{part.rows};
  if (!part.is_vector) expected.push_back(part.cols);
  if (info->shape != expected) {
    throw DataError(fmt::format("{}: tensor '{}' has shape {}, the model's config makes it {}",
                                weights.file_of(part.name), part.name, shape_text(info->shape),
                                shape_text(expected)));
  }
  if (info->dtype != DType::kFloat32 && info->dtype != DType::kBfloat16) {
    throw DataError(fmt::format("{}: tensor '{}' is {}; allowed: float32, bfloat16",
                                weights.file_of(part.name), part.name, dtype_name(info->dtype)));
  }
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// Everything in the file must have a place, but for the head that some tied models repeat.
void check_no_unused(const std::vector<ParameterSpec>& specs,
                     const model::WeightsDirectory& weights) {
  std::set<std::string> known;
  for (const ParameterSpec& spec : specs) {
    for (const LogicalTensor& part : spec.parts) known.insert(part.name);
  }
  for (const std::string& name : weights.names()) {
    if (known.contains(name)) continue;
    const bool repeats_embedding =
        name == "lm_head.weight" && known.contains("model.embed_tokens.weight") &&
        same_bytes(weights.bytes(name), weights.bytes("model.embed_tokens.weight"));
    if (!repeats_embedding) {
      throw DataError(
          fmt::format("{}: tensor {} has no place in this model (tied head, other "
                      "architecture or more layers than config.json says?)",
                      weights.file_of(name), model::shown_text(name)));
    }
  }
}

}  // namespace

void initialize_random(ShardedParameterStore& store, uint64_t seed) {
  if (store.device().is_rehearsal) return;
  for_each_region(store, [&](ParameterId id, const LogicalTensor& part, const ShardRegion& region) {
    const ParameterSpec& spec = store.specs()[static_cast<size_t>(id)];
    HostDraft rows(store.shard(id).rows(region.stored_row, region.num_rows));
    const uint64_t stream = hash_name(part.name);
    for_row_ranges(region, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < region.num_cols; ++c) {
          float value = spec.init == InitKind::kOnes ? 1.0f : 0.0f;
          if (spec.init == InitKind::kNormal) {
            value = spec.init_std * normal_at(seed, stream,
                                              static_cast<uint64_t>(region.logical_row + r),
                                              static_cast<uint64_t>(region.logical_col + c));
          }
          set_element(rows.view(), r * region.num_cols + c, value);
        }
      }
    });
    rows.commit();
  });
  store.mark_weights_changed();
}

void check_weights(const std::vector<ParameterSpec>& specs,
                   const model::WeightsDirectory& weights) {
  for (const ParameterSpec& spec : specs) {
    for (const LogicalTensor& part : spec.parts) check_tensor(weights, part);
  }
  check_no_unused(specs, weights);
}

void load_weights(ShardedParameterStore& store, const model::WeightsDirectory& weights) {
  check_weights(store.specs(), weights);
  for_each_region(store, [&](ParameterId id, const LogicalTensor& part, const ShardRegion& region) {
    HostDraft rows(store.shard(id).rows(region.stored_row, region.num_rows));
    const DType file_dtype = weights.find(part.name)->dtype;
    const std::span<const std::byte> bytes = weights.bytes(part.name);
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        const int64_t index = (region.logical_row + r) * part.cols + region.logical_col + c;
        const float value = element_of_file(bytes, file_dtype, index);
        if (!std::isfinite(value)) {
          throw DataError(fmt::format("{}: tensor '{}' holds {} at row {}, column {}",
                                      weights.file_of(part.name), part.name, value,
                                      region.logical_row + r, region.logical_col + c));
        }
        set_element(rows.view(), r * region.num_cols + c, value);
      }
    }
    rows.commit();
  });
  store.mark_weights_changed();
}

void save_weights(const ShardedParameterStore& store, const std::filesystem::path& directory,
                  DType dtype) {
  CHECK(store.groups().tp.size() == 1 && store.groups().gtp_remat.size() == 1,
        "store '{}' holds a shard, not the whole model", store.name());
  std::vector<model::TensorInfo> infos;
  for_each_region(store, [&](ParameterId, const LogicalTensor& part, const ShardRegion&) {
    std::vector<int64_t> shape{part.rows};
    if (!part.is_vector) shape.push_back(part.cols);
    infos.push_back({.name = part.name, .dtype = dtype, .shape = std::move(shape)});
  });
  model::SafetensorsWriter writer(directory / "model.safetensors", infos, {{"format", "pt"}});
  for_each_region(store, [&](ParameterId id, const LogicalTensor& part, const ShardRegion& region) {
    const Tensor rows = store.shard(id).rows(region.stored_row, region.num_rows);
    std::vector<std::byte> bytes(static_cast<size_t>(rows.num_elements()) *
                                 dtype_size_bytes(dtype));
    const Tensor flat(bytes.data(), dtype, {rows.num_elements()}, Device::cpu());
    convert_elements(flat, HostCopy(rows).view());
    writer.write(part.name, 0, bytes);
  });
  writer.commit();
}

}  // namespace grpo::parallel
