// N planes, P pages, E elements a page.
#include "model/ops/page_copy.h"

#include "tests/ops/op_test.h"

namespace grpo::ops {
namespace {

class PageCopyTest : public OpTest, public ::testing::WithParamInterface<DType> {};

INSTANTIATE_TEST_SUITE_P(DTypes, PageCopyTest, ::testing::ValuesIn(kActivationDTypes),
                         dtype_case_name);

TEST_P(PageCopyTest, CopiesInEveryPlane) {
  constexpr int64_t kPages = 6;
  const Tensor before = random(GetParam(), {3, kPages, 10});
  const Tensor planes = copy(before);
  copy_pages(planes, std::vector<PageCopy>{{4, 1}, {0, 1}, {5, 3}}, ctx());
  const int64_t source_of[kPages] = {1, 1, 2, 3, 1, 3};
  for (int64_t n = 0; n < 3; ++n) {
    for (int64_t page = 0; page < kPages; ++page) {
      const auto page_of = [&](const Tensor& tensor, int64_t index) {
        return tensor.reshaped({3 * kPages, 10}).rows(n * kPages + index, 1);
      };
      expect_same_bits(page_of(planes, page), page_of(before, source_of[page]), "page");
    }
  }
  copy_pages(planes, {}, ctx());
}

TEST_P(PageCopyTest, RefusesCopiesThatDependOnTheirOrder) {
  const Tensor planes = random(GetParam(), {1, 3, 2});
  for (const std::vector<PageCopy>& copies :
       std::vector<std::vector<PageCopy>>{{{1, 0}, {1, 2}},  // written twice
                                          {{1, 0}, {2, 1}},  // written, then read
                                          {{1, 0}, {0, 2}},  // read, then written
                                          {{1, 1}},
                                          {{3, 0}},
                                          {{0, 3}},
                                          {{-1, 0}},
                                          {{0, -1}}}) {
    EXPECT_THROW(copy_pages(planes, copies, ctx()), InternalError)
        << copies[0].destination << " <- " << copies[0].source;
  }
}

}  // namespace
}  // namespace grpo::ops
