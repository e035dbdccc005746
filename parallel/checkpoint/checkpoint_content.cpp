#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "model/core/errors.h"
#include "parallel/checkpoint/checkpoint.h"

namespace grpo::parallel {

int64_t CheckpointTensor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

namespace {

// "model.layers.3.mlp..." lies in layer_00003; what belongs to no layer in its own file.
std::string file_of(const std::string& logical_name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (logical_name.starts_with(kLayers)) {
    const size_t end = logical_name.find('.', kLayers.size());
    return fmt::format("layer_{:0>5}", logical_name.substr(kLayers.size(), end - kLayers.size()));
  }
  if (logical_name == "lm_head.weight") return "head";
  return logical_name == "model.embed_tokens.weight" ? "embedding" : "final_norm";
}

size_t add_tensor(CheckpointContent& content, const std::string& prefix, const LogicalTensor& part,
                  DType dtype) {
  CheckpointTensor tensor{.file = file_of(part.name),
                          .name = prefix + "/" + part.name,
                          .dtype = dtype,
                          .shape = {part.rows}};
  if (!part.is_vector) tensor.shape.push_back(part.cols);
  content.tensors.push_back(std::move(tensor));
  return content.tensors.size() - 1;
}

}  // namespace

void add_weights(CheckpointContent& content, const std::string& prefix,
                 const ShardedParameterStore& store) {
  const ProcessGroups& groups = store.groups();
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const ParameterSpec& spec = store.specs()[i];
    const auto id = static_cast<ParameterId>(i);
    const size_t first_tensor = content.tensors.size();
    for (const LogicalTensor& part : spec.parts) add_tensor(content, prefix, part, store.dtype());
    const bool held_by_gtp_peers =
        spec.gtp == GtpPlacement::kReplicated && groups.gtp_remat.rank() != 0;
    for (const ShardRegion& region : store.layout(id).regions) {
      const LogicalTensor& part = spec.parts[static_cast<size_t>(region.part)];
      CHECK(region.num_cols == part.cols,
            "checkpoints of column cuts come with tensor parallelism");
      const Tensor rows = store.shard(id).rows(region.stored_row, region.num_rows);
      content.pieces.push_back({.tensor = first_tensor + static_cast<size_t>(region.part),
                                .first_element = region.logical_row * part.cols,
                                .values = rows.reshaped({rows.num_elements()}),
                                .is_writer = groups.dp.rank() == 0 && !held_by_gtp_peers});
    }
  }
}

void add_owned_state(CheckpointContent& content, const ShardedParameterStore& store,
                     const std::vector<StateArray>& arrays) {
  for (const StateArray& array : arrays) {
    CHECK(array.values.num_elements() == store.num_owned_elements(),
          "{} elements of '{}', {} owned", array.values.num_elements(), array.prefix,
          store.num_owned_elements());
    std::vector<size_t> first_tensor;
    for (const ParameterSpec& spec : store.specs()) {
      first_tensor.push_back(content.tensors.size());
      for (const LogicalTensor& part : spec.parts) {
        add_tensor(content, array.prefix, part, array.values.dtype());
      }
    }
    for (const OwnedSpan& span : store.owned_spans()) {
      const auto parameter = static_cast<size_t>(span.parameter);
      const LogicalTensor& part = store.specs()[parameter].parts[static_cast<size_t>(span.part)];
      content.pieces.push_back({.tensor = first_tensor[parameter] + static_cast<size_t>(span.part),
                                .first_element = span.logical_row * part.cols + span.logical_col,
                                .values = array.values.rows(span.state_offset, span.num_elements),
                                .is_writer = span.counts_in_norm});
    }
  }
}

void sort_content(CheckpointContent& content) {
  std::vector<size_t> order(content.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const CheckpointTensor& x = content.tensors[a];
    const CheckpointTensor& y = content.tensors[b];
    return std::tie(x.file, x.name) < std::tie(y.file, y.name);
  });
  std::vector<size_t> place(order.size());
  std::vector<CheckpointTensor> sorted;
  for (size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    sorted.push_back(content.tensors[order[i]]);
  }
  content.tensors = std::move(sorted);
  for (CheckpointPiece& piece : content.pieces) piece.tensor = place[piece.tensor];
}

}  // namespace grpo::parallel
