// A libnccl.so.2 in front of the real one, for what a program must notice of it:
//   STAND_IN_REAL_NCCL       path of the real library
//   STAND_IN_VERSION         what ncclGetVersion says instead of the real version, such as 21700
//   STAND_IN_HANGING_RANK    this rank's ...
//   STAND_IN_HANGING_CALL    ... so many-th ncclGroupEnd does not return until a communicator is
//   aborted
#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

std::atomic<int> own_rank = -1;
std::atomic<int> num_group_ends = 0;
std::atomic<bool> is_aborted = false;

// -1 where it is not set.
int number(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? -1 : std::atoi(text);
}

template <typename Function>
Function* real(const char* name, Function*) {
  static void* const library = [] {
    const char* const path = std::getenv("STAND_IN_REAL_NCCL");
    return path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }();
  void* const address = library == nullptr ? nullptr : dlsym(library, name);
  if (address == nullptr) {
    std::fprintf(stderr, "the NCCL stand-in finds no %s; set STAND_IN_REAL_NCCL\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(address);
}

}  // namespace

#define REAL(function) real(#function, static_cast<decltype(&function)>(nullptr))

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = number("STAND_IN_VERSION");
  return *version > 0 ? ncclSuccess : REAL(ncclGetVersion)(version);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  own_rank = rank;
  return REAL(ncclCommInitRankConfig)(comm, nranks, id, rank, config);
}

ncclResult_t ncclGroupEnd() {
  if (own_rank == number("STAND_IN_HANGING_RANK") &&
      ++num_group_ends == number("STAND_IN_HANGING_CALL")) {
    while (!is_aborted) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return ncclSystemError;
  }
  return REAL(ncclGroupEnd)();
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  is_aborted = true;
  return REAL(ncclCommAbort)(comm);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return REAL(ncclGetUniqueId)(id); }

const char* ncclGetErrorString(ncclResult_t result) { return REAL(ncclGetErrorString)(result); }

const char* ncclGetLastError(ncclComm_t comm) { return REAL(ncclGetLastError)(comm); }

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  return REAL(ncclCommSplit)(comm, color, key, part, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return REAL(ncclCommGetAsyncError)(comm, error);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) { return REAL(ncclCommDestroy)(comm); }

ncclResult_t ncclGroupStart() { return REAL(ncclGroupStart)(); }

ncclResult_t ncclAllGather(const void* sent, void* received, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return REAL(ncclAllGather)(sent, received, count, type, comm, stream);
}

ncclResult_t ncclBroadcast(const void* sent, void* received, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return REAL(ncclBroadcast)(sent, received, count, type, root, comm, stream);
}

ncclResult_t ncclSend(const void* sent, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return REAL(ncclSend)(sent, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* received, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return REAL(ncclRecv)(received, count, type, peer, comm, stream);
}

}  // extern "C"
