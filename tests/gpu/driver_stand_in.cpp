// A libcuda.so.1 in place of the driver, for what a program must notice of it:
//   STAND_IN_DRIVER_VERSION  the newest CUDA that it knows, such as 11080
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotFound = 500;
constexpr int kNotInitialized = 3;

int every_other_call() { return kNotInitialized; }

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }

int cuDriverGetVersion(int* version) {
  const char* const text = std::getenv("STAND_IN_DRIVER_VERSION");
  *version = text == nullptr ? 0 : std::atoi(text);
  return kSuccess;
}

int cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* found) {
  const std::string_view name = symbol;
  *function = nullptr;
  if (name == "cuInit") {
    *function = reinterpret_cast<void*>(&cuInit);
  } else if (name == "cuDriverGetVersion") {
    *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  } else if (name.starts_with("cuGetProcAddress")) {
    *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  } else if (!name.empty()) {
    *function = reinterpret_cast<void*>(&every_other_call);
  }
  if (found != nullptr) *found = *function == nullptr ? 1 : 0;
  return *function == nullptr ? kNotFound : kSuccess;
}

}  // extern "C"
