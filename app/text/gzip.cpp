#include "app/text/gzip.h"

#include <zlib.h>

#include "model/core/errors.h"

namespace grpo::app {

namespace {

constexpr int kLevel = 1;                   // records are written while the run waits
constexpr int kGzipWindow = 15 + 16;        // the largest window, in a gzip wrapper
constexpr int kMemoryLevel = 8;             // zlib's default
constexpr size_t kChunk = size_t{1} << 30;  // zlib counts in 32 bits

}  // namespace

std::string gzip(std::span<const std::byte> bytes) {
  z_stream stream{};
  CHECK(deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY) ==
            Z_OK,
        "zlib does not start");
  std::string packed;
  std::string buffer(size_t{1} << 20, '\0');
  int result = Z_OK;
  do {
    const std::span<const std::byte> chunk = bytes.first(std::min(bytes.size(), kChunk));
    bytes = bytes.subspan(chunk.size());
    // zlib only reads its input.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(chunk.data()));
    stream.avail_in = static_cast<uInt>(chunk.size());
    do {
      stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
      stream.avail_out = static_cast<uInt>(buffer.size());
      result = deflate(&stream, bytes.empty() ? Z_FINISH : Z_NO_FLUSH);
      packed.append(buffer, 0, buffer.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  } while (result != Z_STREAM_END);
  deflateEnd(&stream);
  return packed;
}

}  // namespace grpo::app
