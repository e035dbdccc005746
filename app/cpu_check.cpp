// Ends the program with one line on a CPU that lacks instructions the build was compiled for. The
// build compiles this file alone for every x86-64 CPU; the constructor runs before those of all
// other files, which may use the missing instructions. It calls nothing but libc: the linker may
// take an inline function's code from any file.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

constexpr int kExitOther = 1;  // ExitCode::kOther

void write_text(const char* text) {
  // Nothing is left to do when the console cannot be written.
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

// 101 is the earliest priority that is not the compiler's own.
__attribute__((constructor(101))) void check_cpu() {
  __builtin_cpu_init();
  const char* missing = nullptr;
#define GRPO_NEEDS(feature) \
  if (missing == nullptr && !__builtin_cpu_supports(feature)) missing = feature;
  GRPO_CPU_FEATURES
#undef GRPO_NEEDS
  if (missing == nullptr) return;
  write_text("grpo_train: error: this CPU has no ");
  write_text(missing);
  write_text(", which this build needs (compiled for " GRPO_CPU_ARCH
             "); build it on this machine\n");
  _exit(kExitOther);
}

}  // namespace
