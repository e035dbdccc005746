// The one order in which every device adds up a softmax, so that all get the same bits.
//
// A row is cut into blocks of kSoftmaxBlock tokens. A block's weights are exp(z - reference), with
// its own largest z for reference, and are added in fp32: token i to lane i modulo kSoftmaxLanes in
// ascending order, the lanes by halves (lane l and l + n/2, then n/4, ...). A block's mass is that
// sum times exp(reference - max), max the row's largest z, exact in double; masses are added in
// double in ascending order.
//
// A draw walks the masses, then the weights of one block in runs of kDrawRun tokens added in
// double.
//
// top-p adds exp(z - max) in fixed point, so that its cut depends on no order.
#pragma once

#include <cstdint>

namespace grpo::ops {

constexpr int64_t kSoftmaxBlock = 1024;
constexpr int kSoftmaxLanes = 128;
constexpr int64_t kDrawRun = 32;

// Steps of the fixed point of a weight of 1, and the largest vocabulary whose sum fits 64 bits.
constexpr float kFixedPointOne = 0x1p42f;
constexpr int kTokenBits = 22;
constexpr int64_t kMaxVocabulary = int64_t{1} << kTokenBits;

}  // namespace grpo::ops
