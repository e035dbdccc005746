// ParallelConfig: the axes of the mesh, as the config file states them.
#pragma once

#include <cstdint>
#include <string>

#include "model/core/config_visitor.h"
#include "parallel/layout/mesh.h"

namespace grpo::parallel {

struct ParallelConfig {
  int64_t tensor = 1;
  int64_t gtp_remat = 1;
  int64_t data = 0;
  int64_t gtp_alignment = 16;
  double timeout_s = 600;
  std::string device = "auto";

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
  // `data` is resolved.
  Mesh mesh() const {
    return {static_cast<int>(tensor), static_cast<int>(gtp_remat), static_cast<int>(data)};
  }
};

}  // namespace grpo::parallel
