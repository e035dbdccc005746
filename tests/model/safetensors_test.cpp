#include "model/files/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>

#include "model/core/errors.h"
#include "tests/model/scratch_folder.h"

namespace grpo::model {
namespace {

std::string file_text(const std::string& header, size_t data_bytes) {
  std::string text(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(text.data(), &length, 8);
  text += header;
  for (size_t i = 0; i < data_bytes; ++i) text.push_back(static_cast<char>(i));
  return text;
}

// What reading a file with this header and so many data bytes complains about.
std::string refusal(const std::string& header, size_t data_bytes) {
  const ScratchFolder folder;
  const auto path = folder.write("w.safetensors", file_text(header, data_bytes));
  return message_of<DataError>([&] { const SafetensorsFile file(path); });
}

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(SafetensorsFile, ReadsTensorsInFileOrder) {
  const ScratchFolder folder;
  const auto path = folder.write(
      "w.safetensors",
      file_text(
          R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},)"
          R"("z":{"dtype":"I32","shape":[],"data_offsets":[0,4]},)"
          R"("empty":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]}}   )",
          8));
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "z");
  EXPECT_EQ(file.tensors()[0].num_elements(), 1);
  EXPECT_EQ(file.tensors()[1].name, "a");
  EXPECT_EQ(file.tensors()[1].dtype, DType::kBfloat16);
  EXPECT_EQ(file.tensors()[1].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const auto bytes = file.bytes("a");
  EXPECT_EQ(std::vector<std::byte>(bytes.begin(), bytes.end()), bytes_of({4, 5, 6, 7}));
  EXPECT_TRUE(file.bytes("empty").empty());
  EXPECT_EQ(file.find("missing"), nullptr);
  expect_parts(message_of<DataError>([&] { file.bytes("missing"); }),
               {"w.safetensors: no tensor \"missing\""});
}

TEST(SafetensorsFile, ReadsAFileThatTransformersWrote) {
  const std::filesystem::path folder =
      std::filesystem::path(GRPO_TEST_DATA_DIR) / "golden/qwen2_tiny_tied";
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_EQ(file.tensors().size(), 26u);
  const TensorInfo* embedding = file.find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->shape, (std::vector<int64_t>{512, 64}));
  EXPECT_EQ(file.bytes("model.embed_tokens.weight").size(), 512u * 64u * 4u);
}

TEST(SafetensorsFile, OtherDtypesAreRefusedOnlyWhenAskedFor) {
  const ScratchFolder folder;
  const auto path = folder.write(
      "w.safetensors", file_text(R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                                 R"("f":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                                 12));
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.bytes("f").size(), 4u);
  EXPECT_EQ(file.unsupported().at("d"), "F64");
  expect_parts(message_of<DataError>([&] { file.bytes("d"); }),
               {"w.safetensors: tensor \"d\" is F64; F32, BF16"});
  expect_parts(message_of<DataError>([&] { file.find("d"); }), {"tensor \"d\" is F64"});
}

TEST(SafetensorsFile, BrokenFramesAreRefused) {
  const ScratchFolder folder;
  const auto problem = [&](const std::string& text) {
    const auto path = folder.write("w.safetensors", text);
    return message_of<DataError>([&] { const SafetensorsFile file(path); });
  };
  expect_parts(problem(""), {"w.safetensors: 0 bytes"});
  expect_parts(problem("1234567"), {"w.safetensors: 7 bytes"});
  expect_parts(problem(file_text("", 0)), {"does not start with '{'"});
  std::string text = file_text("{}", 0);
  text[0] = 3;
  expect_parts(problem(text), {"header of 3 bytes, but the file has 10 bytes"});
  text[4] = 1;  // 4 GB and more
  expect_parts(problem(text), {"header of 4294967299 bytes, at most 100000000"});
  std::memset(text.data(), 0xff, 8);
  expect_parts(problem(text), {"header of 18446744073709551615 bytes, at most"});
  expect_parts(problem(file_text("[1]", 0)), {"does not start with '{'"});
  expect_parts(problem(file_text("{\"a\":", 0)), {"header: not valid JSON"});
  expect_parts(problem(file_text("{} x", 0)), {"header: not valid JSON"});
  expect_parts(problem(file_text("{\"\xff\":1}", 0)), {"header: not valid JSON"});
  expect_parts(message_of<DataError>([&] { const SafetensorsFile file(folder.path()); }),
               {"is a folder"});
  expect_parts(message_of<DataError>([&] { const SafetensorsFile file(folder.path() / "none"); }),
               {"none: No such file"});
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  expect_parts(message_of<DataError>([&] { const SafetensorsFile file(folder.path() / "pipe"); }),
               {"pipe: is a pipe"});
}

TEST(SafetensorsFile, BrokenEntriesAreRefused) {
  const auto entry = [](const std::string& body) { return "{\"t\":{" + body + "}}"; };
  expect_parts(refusal(R"({"t":7})", 0), {"tensor \"t\" is 7, expected an object"});
  expect_parts(refusal(entry(R"("shape":[1],"data_offsets":[0,4])"), 4), {"dtype is missing"});
  expect_parts(refusal(entry(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), 4),
               {"unknown dtype \"F31\""});
  expect_parts(refusal(entry(R"("dtype":"F32","data_offsets":[0,4])"), 4), {"shape is missing"});
  expect_parts(refusal(entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4),
               {"shape holds -1"});
  expect_parts(refusal(entry(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4),
               {"shape holds 1.0"});
  expect_parts(refusal(entry(R"("dtype":"F32","shape":[1])"), 4),
               {"data_offsets is not a list of two"});
  expect_parts(refusal(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 4),
               {"not a list of two"});
  expect_parts(refusal(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4),
               {"[4, 0] do not span"});
  expect_parts(refusal(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
               {"the 8 bytes"});
  expect_parts(refusal(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":0)"), 4),
               {"keys other than"});
  // Products that wrap around to the right size must not pass.
  expect_parts(
      refusal(entry(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"), 4),
      {"too large"});
  expect_parts(
      refusal(entry(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
      {"too large"});
  expect_parts(
      refusal(entry(R"("dtype":"U8","shape":[18446744073709551615,0],"data_offsets":[0,0])"), 0),
      {"too large"});
  expect_parts(refusal(entry("\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1,1,1,1,1,1,1,1,1,"
                             "1,1,1,1,1,1,1,1]"),
                       1),
               {"17 dims"});
  expect_parts(refusal(R"({"__metadata__":{"a":1}})", 0), {"__metadata__ \"a\" is not a string"});
  expect_parts(refusal(R"({"__metadata__":[]})", 0), {"__metadata__ is not an object"});
}

TEST(SafetensorsFile, RangesMustTileTheData) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  expect_parts(refusal(two("[0,4]", "[2,6]"), 6),
               {"\"b\"", "begin at 2, which overlaps data up to byte 4"});
  expect_parts(refusal(two("[0,4]", "[0,4]"), 8), {"\"b\"", "begin at 0, which overlaps"});
  expect_parts(refusal(two("[0,4]", "[5,9]"), 9), {"\"b\"", "leaves a hole from byte 4"});
  expect_parts(refusal(two("[1,5]", "[5,9]"), 9), {"\"a\"", "leaves a hole from byte 0"});
  expect_parts(refusal(two("[0,4]", "[4,8]"), 7), {"\"b\"", "end at 8, the file holds 7"});
  expect_parts(refusal(two("[0,4]", "[4,8]"), 9), {"use 8 of 9"});
  expect_parts(refusal(two("[0,4]", "[18446744073709551612,18446744073709551616]"), 8),
               {"data_offsets holds"});
  expect_parts(refusal(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                       1),
               {"header: duplicate key \"t\""});
}

TEST(SafetensorsFile, MessagesStayOnOneLine) {
  const std::string name = "line\\n\\u001b[31m" + std::string(5000, 'x');
  const std::string message =
      refusal("{\"" + name + R"(":{"dtype":"?","shape":[],"data_offsets":[0,0]}})", 0);
  expect_parts(message, {"line\\n\\u001b[31mxxx"});
  EXPECT_LT(message.size(), 400u);
}

class WeightsDirectoryTest : public testing::Test {
 protected:
  void write_shard(const std::string& name, const std::string& tensor) {
    SafetensorsWriter writer(folder_.path() / name, {{tensor, DType::kUint8, {2}}}, {});
    writer.write(tensor, 0, bytes_of({1, 2}));
    writer.commit();
  }

  std::string problem(const std::string& index) {
    folder_.write("model.safetensors.index.json", index);
    return message_of<DataError>([&] { const WeightsDirectory directory(folder_.path()); });
  }

  ScratchFolder folder_;
};

TEST_F(WeightsDirectoryTest, ReadsASingleFile) {
  expect_parts(message_of<DataError>([&] { const WeightsDirectory directory(folder_.path()); }),
               {"holds neither model.safetensors nor model.safetensors.index.json"});
  write_shard("model.safetensors", "a");
  const WeightsDirectory directory(folder_.path());
  ASSERT_EQ(directory.tensors().size(), 1u);
  EXPECT_EQ(directory.bytes("a").size(), 2u);
  EXPECT_TRUE(directory.file_of("a").ends_with("model.safetensors"));
  EXPECT_EQ(directory.find("b"), nullptr);
  expect_parts(message_of<DataError>([&] { directory.bytes("b"); }), {"no tensor \"b\""});
}

TEST_F(WeightsDirectoryTest, ReadsShards) {
  write_shard("model-1.safetensors", "a");
  write_shard("model-2.safetensors", "b");
  folder_.write(
      "model.safetensors.index.json",
      R"({"metadata":{},"weight_map":{"b":"model-2.safetensors","a":"model-1.safetensors"}})");
  const WeightsDirectory directory(folder_.path());
  ASSERT_EQ(directory.tensors().size(), 2u);
  EXPECT_TRUE(directory.file_of("b").ends_with("model-2.safetensors"));
  EXPECT_EQ(directory.find("a")->num_elements(), 2);
}

TEST_F(WeightsDirectoryTest, HostileIndexFilesAreRefused) {
  write_shard("model-1.safetensors", "a");
  expect_parts(problem("{}"), {"index.json: weight_map is missing"});
  expect_parts(problem("[]"), {"index.json: weight_map is missing"});
  expect_parts(problem(R"({"weight_map":{"a":1}})"), {"weight_map \"a\" is 1"});
  for (const char* shard : {"../model-1.safetensors", "/etc/x.safetensors",
                            "a/../model-1.safetensors", "", "..", "model-1.bin"}) {
    expect_parts(problem(std::string(R"({"weight_map":{"a":")") + shard + "\"}}"),
                 {"index.json: weight_map names file", "a plain *.safetensors name"});
  }
  expect_parts(problem(R"({"weight_map":{"a":"model-9.safetensors"}})"),
               {"model-9.safetensors: No such file"});
  expect_parts(problem(R"({"weight_map":{"b":"model-1.safetensors"}})"),
               {"puts \"b\" into", "which lacks it"});
  expect_parts(problem(R"({"weight_map":{"a":"model-1.safetensors","a":"model-1.safetensors"}})"),
               {"duplicate key \"a\""});
}

TEST(SafetensorsWriter, PiecesInAnyOrderReadBack) {
  const ScratchFolder folder;
  const auto path = folder.path() / "out.safetensors";
  SafetensorsWriter writer(path,
                           {{"odd \"name\"\n", DType::kUint8, {3}},
                            {"w", DType::kBfloat16, {2, 2}},
                            {"none", DType::kInt64, {0}}},
                           {{"format", "pt"}, {"step", "12"}});
  writer.write("w", 2, bytes_of({14, 15, 16, 17}));
  writer.write("odd \"name\"\n", 0, bytes_of({1, 2, 3}));
  writer.write("w", 1, bytes_of({12, 13}));
  writer.write("w", 0, bytes_of({10, 11}));
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.commit();
  EXPECT_EQ(folder.num_files(), 1u);

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("step"), "12");
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.find("w")->shape, (std::vector<int64_t>{2, 2}));
  const auto bytes = file.bytes("w");
  EXPECT_EQ(std::vector<std::byte>(bytes.begin(), bytes.end()),
            bytes_of({10, 11, 12, 13, 14, 15, 16, 17}));
  uint64_t header_bytes = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header_bytes), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
}

TEST(SafetensorsWriter, ACopyHasEqualTensorBytes) {
  const std::filesystem::path source =
      std::filesystem::path(GRPO_TEST_DATA_DIR) / "golden/qwen2_tiny_tied";
  const SafetensorsFile original(source / "model.safetensors");
  const ScratchFolder folder;
  SafetensorsWriter writer(folder.path() / "model.safetensors", original.tensors(),
                           original.metadata());
  for (const TensorInfo& tensor : original.tensors())
    writer.write(tensor.name, 0, original.bytes(tensor.name));
  writer.commit();
  const SafetensorsFile copy(folder.path() / "model.safetensors");
  ASSERT_EQ(copy.tensors().size(), original.tensors().size());
  EXPECT_EQ(copy.metadata(), original.metadata());
  for (const TensorInfo& tensor : original.tensors()) {
    EXPECT_EQ(copy.find(tensor.name)->shape, tensor.shape);
    const auto a = original.bytes(tensor.name);
    const auto b = copy.bytes(tensor.name);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << tensor.name;
  }
}

TEST(SafetensorsWriter, WithoutCommitNothingStays) {
  const ScratchFolder folder;
  {
    SafetensorsWriter writer(folder.path() / "out.safetensors", {{"w", DType::kUint8, {4}}}, {});
    writer.write("w", 0, bytes_of({1, 2}));
    EXPECT_EQ(folder.num_files(), 1u);
    message_of<InternalError>([&] { writer.commit(); });
  }
  EXPECT_EQ(folder.num_files(), 0u);
}

TEST(SafetensorsWriter, WrongWritesAreCaught) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder.path() / "out.safetensors", {{"w", DType::kInt32, {4}}}, {});
  const auto four = bytes_of({0, 0, 0, 0});
  const auto eight = bytes_of({0, 0, 0, 0, 0, 0, 0, 0});
  writer.write("w", 1, eight);
  for (const int64_t first :
       {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5}, int64_t{-1}, INT64_MAX}) {
    message_of<InternalError>([&] { writer.write("w", first, eight); });
  }
  message_of<InternalError>([&] { writer.write("w", 2, four); });  // inside a written range
  message_of<InternalError>([&] { writer.write("w", 0, std::span(eight).first(6)); });
  message_of<InternalError>([&] { writer.write("v", 0, four); });
  message_of<InternalError>([&] { writer.commit(); });
  message_of<InternalError>([&] {
    const SafetensorsWriter twice(folder.path() / "x",
                                  {{"w", DType::kInt32, {1}}, {"w", DType::kInt32, {1}}}, {});
  });
}

TEST(SafetensorsWriter, AFullDiskLeavesNothing) {
  // A file size limit of the process stands for the full disk: write() fails in the same way.
  struct rlimit old_limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const ScratchFolder folder;
  const auto path = folder.write("out.safetensors", "the file before");
  const std::vector<std::byte> megabyte(1 << 20);
  std::string message;
  {
    SafetensorsWriter writer(path, {{"w", DType::kUint8, {1 << 20}}}, {});
    struct rlimit limit = old_limit;
    limit.rlim_cur = 100000;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    message = message_of<DataError>([&] { writer.write("w", 0, megabyte); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  }
  std::signal(SIGXFSZ, old_handler);
  expect_parts(message, {"out.safetensors: cannot write: "});
  EXPECT_EQ(folder.num_files(), 1u);
  EXPECT_EQ(std::filesystem::file_size(path), 15u);
}

TEST(SafetensorsWriter, AMissingFolderIsNamed) {
  expect_parts(message_of<DataError>([] {
                 const SafetensorsWriter writer("/nonexistent-folder/x.safetensors", {}, {});
               }),
               {"/nonexistent-folder/x.safetensors: cannot create the file: No such file"});
}

}  // namespace
}  // namespace grpo::model
