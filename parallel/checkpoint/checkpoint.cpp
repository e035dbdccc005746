#include "parallel/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <tuple>

#include "model/core/errors.h"
#include "model/core/host_transfer.h"
#include "model/files/checksum.h"
#include "model/files/safetensors.h"
#include "parallel/comm/host_collectives.h"

namespace grpo::parallel {

namespace {

// A run of elements on its way from the rank that holds it to the rank that writes its file.
struct Run {
  int64_t tensor;
  int64_t first_element;
  int64_t num_elements;
  int64_t rank;    // that holds it
  int64_t piece;   // on that rank
  int64_t offset;  // within the piece
};

// A rank's writing pieces, cut to at most `max_bytes`.
std::vector<Run> own_runs(const CheckpointContent& content, int rank, int64_t max_bytes) {
  std::vector<Run> own;
  for (size_t i = 0; i < content.pieces.size(); ++i) {
    const CheckpointPiece& piece = content.pieces[i];
    if (!piece.is_writer) continue;
    const auto element_bytes = static_cast<int64_t>(dtype_size_bytes(piece.values.dtype()));
    const int64_t most = std::max<int64_t>(1, max_bytes / element_bytes);
    for (int64_t offset = 0; offset < piece.values.num_elements(); offset += most) {
      own.push_back({.tensor = static_cast<int64_t>(piece.tensor),
                     .first_element = piece.first_element + offset,
                     .num_elements = std::min(most, piece.values.num_elements() - offset),
                     .rank = rank,
                     .piece = static_cast<int64_t>(i),
                     .offset = offset});
    }
  }
  return own;
}

void sort_in_file_order(std::vector<Run>& runs) {
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::tie(a.tensor, a.first_element) < std::tie(b.tensor, b.first_element);
  });
}

// Every rank's, in file order.
std::vector<Run> all_runs(const CheckpointContent& content, Communicator& world,
                          int64_t max_bytes) {
  const std::vector<Run> own = own_runs(content, world.rank(), max_bytes);
  std::vector<Run> all;
  for (const auto& bytes : all_gather_bytes(world, std::as_bytes(std::span(own)))) {
    const size_t count = bytes.size() / sizeof(Run);
    const size_t begin = all.size();
    all.resize(begin + count);
    if (count != 0) std::memcpy(all.data() + begin, bytes.data(), bytes.size());
  }
  sort_in_file_order(all);
  return all;
}

// Which rank writes which run, and which runs move together.
class WritingOrder {
 public:
  WritingOrder(const CheckpointContent& content, int world_size)
      : content_(content), world_size_(world_size) {
    for (size_t i = 0; i < content_.tensors.size(); ++i) {
      if (i == 0 || content_.tensors[i].file != content_.tensors[i - 1].file) ++num_files_;
      file_of_tensor_.push_back(num_files_ - 1);
    }
  }

  int file_of_tensor(size_t tensor) const { return file_of_tensor_[tensor]; }
  int writer_of(const Run& run) const {
    return file_of_tensor_[static_cast<size_t>(run.tensor)] % world_size_;
  }
  int64_t bytes_of(const Run& run) const {
    const DType dtype = content_.tensors[static_cast<size_t>(run.tensor)].dtype;
    return run.num_elements * static_cast<int64_t>(dtype_size_bytes(dtype));
  }
  // End of the window of runs from `begin` on.
  size_t window_end(const std::vector<Run>& runs, size_t begin, int64_t bucket_bytes) const {
    size_t end = begin;
    int64_t bytes = 0;
    while (end < runs.size() && (end == begin || bytes + bytes_of(runs[end]) <= bucket_bytes)) {
      bytes += bytes_of(runs[end++]);
    }
    return end;
  }
  // What writers receive from others in a window, by rank.
  std::map<int, int64_t> received_bytes(const std::vector<Run>& runs, size_t begin,
                                        size_t end) const {
    std::map<int, int64_t> bytes;
    for (size_t i = begin; i < end; ++i) {
      const int writer = writer_of(runs[i]);
      if (runs[i].rank != writer) bytes[writer] += bytes_of(runs[i]);
    }
    return bytes;
  }

 private:
  const CheckpointContent& content_;
  int world_size_;
  std::vector<int> file_of_tensor_;
  int num_files_ = 0;
};

// Walks the runs in windows, moves them to their writers, and writes the files this rank has.
class CheckpointWriter {
 public:
  CheckpointWriter(const std::filesystem::path& folder, const CheckpointContent& content,
                   Communicator& world, Allocator& allocator)
      : folder_(folder),
        content_(content),
        world_(world),
        allocator_(allocator),
        order_(content, world.size()) {}

  // The files that this rank wrote. None stays when it fails.
  std::vector<CheckpointFile> write(const std::vector<Run>& runs, int64_t bucket_bytes) {
    try {
      write_files(runs, bucket_bytes);
    } catch (...) {
      std::error_code ignored;
      for (const CheckpointFile& file : written_) {
        std::filesystem::remove(folder_ / file.name, ignored);
      }
      throw;
    }
    return written_;
  }

 private:
  void write_files(const std::vector<Run>& runs, int64_t bucket_bytes) {
    size_t begin = 0;
    while (begin < runs.size()) {
      const size_t end = order_.window_end(runs, begin, bucket_bytes);
      move_window(runs, begin, end);
      begin = end;
    }
    finish_file();
  }

  Tensor own_values(const Run& run) const {
    return content_.pieces[static_cast<size_t>(run.piece)].values.rows(run.offset,
                                                                       run.num_elements);
  }

  // Messages between a pair of ranks are in the order of the runs on both sides.
  void move_window(const std::vector<Run>& runs, size_t begin, size_t end) {
    std::vector<PeerMessage> sends;
    std::vector<PeerMessage> receives;
    // One buffer for all that arrives, in the order of the runs.
    const Buffer buffer = allocator_.allocate(
        "checkpoint/buckets",
        static_cast<size_t>(order_.received_bytes(runs, begin, end)[world_.rank()]));
    std::byte* next = static_cast<std::byte*>(buffer.data());
    std::vector<Tensor> to_write(end - begin);
    for (size_t i = begin; i < end; ++i) {
      const Run& run = runs[i];
      const int writer = order_.writer_of(run);
      const bool is_holder = run.rank == world_.rank();
      if (is_holder) {
        const Tensor values = own_values(run);
        if (writer != world_.rank()) sends.push_back({writer, values});
        to_write[i - begin] = values;
      } else if (writer == world_.rank()) {
        const Tensor values(next, content_.tensors[static_cast<size_t>(run.tensor)].dtype,
                            {run.num_elements}, buffer.device());
        receives.push_back({static_cast<int>(run.rank), values});
        to_write[i - begin] = values;
        next += values.size_bytes();
      }
    }
    world_.exchange(sends, receives, Stream::none());
    for (size_t i = begin; i < end; ++i) {
      if (order_.writer_of(runs[i]) == world_.rank()) {
        write_run(runs[i], HostCopy(to_write[i - begin]).bytes());
      }
    }
  }

  void write_run(const Run& run, std::span<const std::byte> bytes) {
    const int file = order_.file_of_tensor(static_cast<size_t>(run.tensor));
    if (file != open_file_) {
      finish_file();
      std::vector<model::TensorInfo> infos;
      for (size_t i = 0; i < content_.tensors.size(); ++i) {
        const CheckpointTensor& tensor = content_.tensors[i];
        if (order_.file_of_tensor(i) != file) continue;
        infos.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
      }
      open_name_ = content_.tensors[static_cast<size_t>(run.tensor)].file + ".safetensors";
      writer_ = std::make_unique<model::SafetensorsWriter>(folder_ / open_name_, infos,
                                                           std::map<std::string, std::string>{});
      open_file_ = file;
    }
    writer_->write(content_.tensors[static_cast<size_t>(run.tensor)].name, run.first_element,
                   bytes);
  }

  void finish_file() {
    if (writer_ != nullptr) {
      writer_->commit();
      const model::Checksum64& checksum = writer_->checksum();
      written_.push_back({.name = open_name_,
                          .num_bytes = static_cast<int64_t>(checksum.num_bytes()),
                          .checksum = checksum.value()});
    }
    writer_ = nullptr;
    open_file_ = -1;
  }

  std::filesystem::path folder_;
  const CheckpointContent& content_;
  Communicator& world_;
  Allocator& allocator_;
  WritingOrder order_;
  int open_file_ = -1;
  std::string open_name_;
  std::vector<CheckpointFile> written_;
  std::unique_ptr<model::SafetensorsWriter> writer_;
};

// Every rank's files, on every rank.
std::vector<CheckpointFile> all_files(const std::vector<CheckpointFile>& own, Communicator& world) {
  std::string text;
  for (const CheckpointFile& file : own) {
    text += fmt::format("{} {} {}\n", file.name, file.num_bytes, file.checksum);
  }
  std::vector<CheckpointFile> files;
  for (const auto& bytes : all_gather_bytes(world, std::as_bytes(std::span(text)))) {
    std::istringstream lines(
        std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    for (CheckpointFile file; lines >> file.name >> file.num_bytes >> file.checksum;) {
      files.push_back(file);
    }
  }
  return files;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                     const CheckpointManifest& manifest, Communicator& world, Allocator& allocator,
                     int64_t bucket_bytes) {
  if (world.rank() == 0) begin_checkpoint(folder);
  world.barrier();
  const std::vector<Run> runs = all_runs(content, world, bucket_bytes);
  CheckpointWriter writer(folder, content, world, allocator);
  const std::vector<CheckpointFile> files = all_files(writer.write(runs, bucket_bytes), world);
  if (world.rank() == 0) {
    try {
      if (manifest.add_files) manifest.add_files(folder);
      commit_checkpoint(folder, manifest, files);
    } catch (...) {
      // The others wait: nobody writes there now.
      try {
        remove_checkpoint(folder);
      } catch (const DataError&) {
        // What cannot be removed now is recognised by the next run.
      }
      throw;
    }
  }
  world.barrier();
}

std::vector<size_t> checkpoint_bucket_bytes(
    int world_size, const std::function<CheckpointContent(int rank)>& content_of,
    int64_t bucket_bytes) {
  std::vector<Run> runs;
  CheckpointContent content;
  for (int holder = 0; holder < world_size; ++holder) {
    content = content_of(holder);
    const std::vector<Run> own = own_runs(content, holder, bucket_bytes);
    runs.insert(runs.end(), own.begin(), own.end());
  }
  sort_in_file_order(runs);
  const WritingOrder order(content, world_size);
  std::vector<size_t> most(static_cast<size_t>(world_size), 0);
  for (size_t begin = 0; begin < runs.size();) {
    const size_t end = order.window_end(runs, begin, bucket_bytes);
    for (const auto& [rank, bytes] : order.received_bytes(runs, begin, end)) {
      size_t& own = most[static_cast<size_t>(rank)];
      own = std::max(own, static_cast<size_t>(bytes));
    }
    begin = end;
  }
  return most;
}

}  // namespace grpo::parallel
