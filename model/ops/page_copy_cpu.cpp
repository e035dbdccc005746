#include "model/ops/page_copy_cpu.h"

namespace grpo::ops {

void copy_pages_cpu(const Tensor& planes, std::span<const PageCopy> copies) {
  for (int64_t n = 0; n < planes.size(0); ++n) {
    const Tensor pages = planes.rows(n, 1).reshaped({planes.size(1), planes.size(2)});
    for (const PageCopy& copy : copies) {
      copy_tensor(pages.rows(copy.destination, 1), pages.rows(copy.source, 1));
    }
  }
}

}  // namespace grpo::ops
