#include "model/core/captured_work.h"
#include "model/core/cuda_check.h"
#include "model/core/device_stream.h"

namespace grpo {

namespace {

class Graph {
 public:
  Graph() = default;
  ~Graph() {
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  cudaGraph_t get() const { return graph_; }

  // From a stream of its own: the default stream cannot be recorded.
  void record(Device device, const std::function<void(Stream)>& work) {
    const DeviceStream recorded(device);
    const cudaStream_t stream = cuda_stream(recorded.get());
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      work(recorded.get());
    } catch (...) {
      cudaStreamEndCapture(stream, &graph_);
      cudaGetLastError();  // what the work threw says more
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph_));
  }

 private:
  cudaGraph_t graph_ = nullptr;
};

}  // namespace

struct CapturedWork::State {
  explicit State(Device on) : device(on) {}
  ~State() {
    cudaSetDevice(device.index);
    if (executable != nullptr) cudaGraphExecDestroy(executable);
  }

  Device device;
  cudaGraphExec_t executable = nullptr;
};

CapturedWork::CapturedWork(Device device, std::function<void(Stream)> work)
    : state_(std::make_unique<State>(device)) {
  CUDA_CHECK(cudaSetDevice(device.index));
  Graph graph;
  graph.record(device, work);
  CUDA_CHECK(cudaGraphInstantiate(&state_->executable, graph.get(), 0));
}

CapturedWork::~CapturedWork() = default;

void CapturedWork::launch(Stream stream) {
  CUDA_CHECK(cudaSetDevice(state_->device.index));
  CUDA_CHECK(cudaGraphLaunch(state_->executable, cuda_stream(stream)));
}

}  // namespace grpo
