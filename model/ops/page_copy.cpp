#include "model/ops/page_copy.h"

#include <vector>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"

namespace grpo::ops {

void copy_pages(const Tensor& planes, std::span<const PageCopy> copies, OpContext& ctx) {
  const char* op = "copy_pages";
  const OperandChecks checks(op, ctx);
  checks.expect_rank("planes", planes, 3);
  checks.expect_activation("planes", planes);
  const int64_t num_pages = planes.size(1);
  enum class Role : uint8_t { kNone, kRead, kWritten };
  std::vector<Role> roles(static_cast<size_t>(num_pages), Role::kNone);
  const auto role_of = [&](int32_t page) -> Role& {
    CHECK(page >= 0 && page < num_pages, "{}: page {} of {}", op, page, num_pages);
    return roles[static_cast<size_t>(page)];
  };
  for (const PageCopy& copy : copies) {
    CHECK(role_of(copy.destination) == Role::kNone, "{}: page {} is written twice or read", op,
          copy.destination);
    role_of(copy.destination) = Role::kWritten;
    CHECK(role_of(copy.source) != Role::kWritten, "{}: page {} is written and read", op,
          copy.source);
    role_of(copy.source) = Role::kRead;
  }
  dispatch_device(
      ctx, [&] { cpu::copy_pages(planes, copies); },
      [&] { cuda::copy_pages(planes, copies, ctx); });
}

}  // namespace grpo::ops
