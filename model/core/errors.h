// Error types and CHECK. Errors are exceptions; only main() turns them into exit codes.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace grpo {

// The process's exit codes, documented in the README.
enum class ExitCode : int {
  kDone = 0,
  kOther = 1,
  kConfig = 2,            // a config file, key, override or command line the user can fix
  kData = 3,              // a data, model or tokenizer file the user can fix
  kGate = 4,              // a gate with action `stop` ended the run
  kComm = 5,              // another rank failed, died, or did not answer in time
  kSavedAfterSignal = 75  // state saved after a signal
};

// Base of every error this program throws. The message is one line: what, where, which value, what
// is allowed.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(ExitCode::kConfig, message) {}
};

class DataError : public Error {
 public:
  explicit DataError(const std::string& message) : Error(ExitCode::kData, message) {}
};

class GateError : public Error {
 public:
  explicit GateError(const std::string& message) : Error(ExitCode::kGate, message) {}
};

class CommError : public Error {
 public:
  explicit CommError(const std::string& message) : Error(ExitCode::kComm, message) {}

 protected:
  CommError(ExitCode code, const std::string& message) : Error(code, message) {}
};

// This rank stops because another one failed first; carries that rank's exit code.
class PeerFailureError : public CommError {
 public:
  PeerFailureError(ExitCode code, const std::string& message) : CommError(code, message) {}
};

// A CUDA call that failed, or a device that cannot be used; with the call's text and place, or what
// is missing.
class CudaError : public Error {
 public:
  explicit CudaError(const std::string& message) : Error(ExitCode::kOther, message) {}
};

// A broken invariant of this program, never the user's fault.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ExitCode::kOther, message) {}
};

// A loss, gradient or weight that is not finite; names the tensor, layer and rank.
class NonFiniteError : public Error {
 public:
  explicit NonFiniteError(const std::string& message) : Error(ExitCode::kOther, message) {}
};

[[noreturn]] void throw_check_failure(const char* file, int line, const char* condition,
                                      const std::string& message);

}  // namespace grpo

// CHECK(condition) or CHECK(condition, "format {}", value): throws InternalError in every build
// type.
#define CHECK(condition, ...)                                                                     \
  do {                                                                                            \
    if (!(condition)) [[unlikely]]                                                                \
      ::grpo::throw_check_failure(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
