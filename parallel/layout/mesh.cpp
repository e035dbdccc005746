#include "parallel/layout/mesh.h"

#include "model/core/errors.h"

namespace grpo::parallel {

Mesh::Mesh(int tp_size, int gtp_remat_size, int dp_size)
    : tp_size_(tp_size), gtp_remat_size_(gtp_remat_size), dp_size_(dp_size) {
  CHECK(tp_size >= 1 && gtp_remat_size >= 1 && dp_size >= 1, "mesh {} x {} x {}", tp_size,
        gtp_remat_size, dp_size);
}

MeshCoordinate Mesh::coordinate(int rank) const {
  CHECK(rank >= 0 && rank < world_size(), "rank {} of {}", rank, world_size());
  return {rank % tp_size_, rank / tp_size_ % gtp_remat_size_, rank / (tp_size_ * gtp_remat_size_)};
}

int Mesh::rank_of(const MeshCoordinate& c) const {
  return (c.dp * gtp_remat_size_ + c.gtp_remat) * tp_size_ + c.tp;
}

std::vector<int> Mesh::tp_ranks(int rank) const {
  MeshCoordinate c = coordinate(rank);
  std::vector<int> ranks;
  for (c.tp = 0; c.tp < tp_size_; ++c.tp) ranks.push_back(rank_of(c));
  return ranks;
}

std::vector<int> Mesh::gtp_remat_ranks(int rank) const {
  MeshCoordinate c = coordinate(rank);
  std::vector<int> ranks;
  for (c.gtp_remat = 0; c.gtp_remat < gtp_remat_size_; ++c.gtp_remat) ranks.push_back(rank_of(c));
  return ranks;
}

std::vector<int> Mesh::dp_ranks(int rank) const {
  MeshCoordinate c = coordinate(rank);
  std::vector<int> ranks;
  for (c.dp = 0; c.dp < dp_size_; ++c.dp) ranks.push_back(rank_of(c));
  return ranks;
}

std::vector<int> Mesh::data_ranks(int rank) const {
  MeshCoordinate c = coordinate(rank);
  std::vector<int> ranks;
  for (c.dp = 0; c.dp < dp_size_; ++c.dp) {
    for (c.gtp_remat = 0; c.gtp_remat < gtp_remat_size_; ++c.gtp_remat) ranks.push_back(rank_of(c));
  }
  return ranks;
}

std::string Mesh::to_string() const {
  std::string text;
  for (int rank = 0; rank < world_size(); ++rank) {
    const MeshCoordinate c = coordinate(rank);
    text += fmt::format("rank {} -> tp {}, gtp_remat {}, dp {}\n", rank, c.tp, c.gtp_remat, c.dp);
  }
  return text;
}

}  // namespace grpo::parallel
