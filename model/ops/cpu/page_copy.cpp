#include "model/ops/cpu/entry_points.h"

namespace grpo::ops::cpu {

void copy_pages(const Tensor& planes, std::span<const PageCopy> copies) {
  for (int64_t n = 0; n < planes.size(0); ++n) {
    const Tensor pages = planes.rows(n, 1).reshaped({planes.size(1), planes.size(2)});
    for (const PageCopy& copy : copies) {
      copy_tensor(pages.rows(copy.destination, 1), pages.rows(copy.source, 1));
    }
  }
}

}  // namespace grpo::ops::cpu
