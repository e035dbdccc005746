// Mesh: which rank stands where. Rank order: tp fastest, then gtp_remat, then dp.
#pragma once

#include <string>
#include <vector>

namespace grpo::parallel {

struct MeshCoordinate {
  int tp;
  int gtp_remat;
  int dp;
};

// Pure arithmetic; immutable.
class Mesh {
 public:
  Mesh(int tp_size, int gtp_remat_size, int dp_size);

  int tp_size() const { return tp_size_; }
  int gtp_remat_size() const { return gtp_remat_size_; }
  int dp_size() const { return dp_size_; }
  int world_size() const { return tp_size_ * gtp_remat_size_ * dp_size_; }

  MeshCoordinate coordinate(int rank) const;
  int rank_of(const MeshCoordinate& coordinate) const;

  // World ranks that differ from `rank` only in the named axis, ascending.
  std::vector<int> tp_ranks(int rank) const;
  std::vector<int> gtp_remat_ranks(int rank) const;
  std::vector<int> dp_ranks(int rank) const;
  // ... in gtp_remat and dp: the ranks that data is split over.
  std::vector<int> data_ranks(int rank) const;

  // One line a rank: "rank 3 -> tp 0, gtp_remat 1, dp 1".
  std::string to_string() const;

 private:
  int tp_size_;
  int gtp_remat_size_;
  int dp_size_;
};

}  // namespace grpo::parallel
