// Weights that name their own place, so that a misplaced row shows itself; exact in bfloat16.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/core/host_transfer.h"
#include "model/core/parameter_spec.h"
#include "parallel/store/sharded_parameter_store.h"
#include "tests/model_fixture.h"

namespace grpo::parallel {

// Of element (row, col) of a logical tensor.
using Code = std::function<float(const std::string& tensor, int64_t row, int64_t col)>;

// W[i][j] = (31 i + j + 7 t) mod 251, t the tensor's place among the names. `shift` gives other
// weights of the kind.
inline Code make_code(const std::vector<ParameterSpec>& specs, int64_t shift = 0) {
  std::map<std::string, int64_t> ids;
  for (const ParameterSpec& spec : specs) {
    for (const LogicalTensor& part : spec.parts) {
      ids.emplace(part.name, static_cast<int64_t>(ids.size()));
    }
  }
  return [ids, shift](const std::string& tensor, int64_t row, int64_t col) {
    return static_cast<float>((31 * row + col + 7 * ids.at(tensor) + shift) % 251);
  };
}

// Of a tensor on the host.
inline float read_value(const Tensor& tensor, int64_t index) {
  return tensor.dtype() == DType::kFloat32 ? tensor.data<float>()[index]
                                           : static_cast<float>(tensor.data<Bfloat16>()[index]);
}

inline void write_value(const Tensor& tensor, int64_t index, float value) {
  if (tensor.dtype() == DType::kFloat32) {
    tensor.data<float>()[index] = value;
  } else {
    tensor.data<Bfloat16>()[index] = Bfloat16(value);
  }
}

// Calls visit(tensor, row, col, value) for every logical element this rank stores.
inline void for_each_element(
    const ShardedParameterStore& store,
    const std::function<void(const std::string&, int64_t, int64_t, float)>& visit) {
  grpo::testing::for_each_region(store, [&](ParameterId, const LogicalTensor& part,
                                            const ShardRegion& region, const Tensor& shard) {
    const HostCopy rows(shard.rows(region.stored_row, region.num_rows));
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        visit(part.name, region.logical_row + r, region.logical_col + c,
              read_value(rows.view(), r * region.num_cols + c));
      }
    }
  });
}

// Makes every logical element this rank stores change(tensor, row, col, value).
inline void change_elements(
    ShardedParameterStore& store,
    const std::function<float(const std::string&, int64_t, int64_t, float)>& change) {
  grpo::testing::for_each_region(store, [&](ParameterId, const LogicalTensor& part,
                                            const ShardRegion& region, const Tensor& shard) {
    const HostCopy old(shard.rows(region.stored_row, region.num_rows));
    HostDraft rows(shard.rows(region.stored_row, region.num_rows));
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        const int64_t index = r * region.num_cols + c;
        write_value(rows.view(), index,
                    change(part.name, region.logical_row + r, region.logical_col + c,
                           read_value(old.view(), index)));
      }
    }
    rows.commit();
  });
  store.mark_weights_changed();
}

// Fills the shards with the code and their padding with a value that must never travel.
inline void fill_coded(ShardedParameterStore& store, const Code& code, float padding = 1e30f) {
  for (size_t i = 0; i < store.specs().size(); ++i) {
    HostDraft shard(store.shard(static_cast<ParameterId>(i)));
    for (int64_t e = 0; e < shard.view().num_elements(); ++e) {
      write_value(shard.view(), e, padding);
    }
    shard.commit();
  }
  change_elements(store, [&](const std::string& tensor, int64_t row, int64_t col, float) {
    return code(tensor, row, col);
  });
}

// Number of stored logical elements that are not the code's (NaN included).
inline int64_t count_wrong(const ShardedParameterStore& store, const Code& code) {
  int64_t wrong = 0;
  for_each_element(store, [&](const std::string& tensor, int64_t row, int64_t col, float value) {
    wrong += value == code(tensor, row, col) ? 0 : 1;
  });
  return wrong;
}

// Number of stored elements, padding included, that are NaN.
inline int64_t count_nan(const ShardedParameterStore& store) {
  int64_t num_nan = 0;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const HostCopy shard(store.shard(static_cast<ParameterId>(i)));
    for (int64_t e = 0; e < shard.view().num_elements(); ++e) {
      num_nan += std::isnan(read_value(shard.view(), e)) ? 1 : 0;
    }
  }
  return num_nan;
}

}  // namespace grpo::parallel
