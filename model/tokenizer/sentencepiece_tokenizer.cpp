#include "model/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <charconv>
#include <utility>

#include "model/core/errors.h"
#include "model/files/json_text.h"
#include "model/tokenizer/unicode_text.h"

namespace grpo::model {
namespace {

constexpr size_t kMaxModelBytes = size_t{256} << 20;
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581 stands for a blank inside pieces

std::string with_blanks(std::string_view piece) {
  std::string text;
  for (size_t position = 0; position < piece.size();) {
    if (piece.substr(position).starts_with(kSpaceMark)) {
      text.push_back(' ');
      position += kSpaceMark.size();
    } else {
      text.push_back(piece[position++]);
    }
  }
  return text;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& serialized, const std::string& path) {
    const auto status = processor_.LoadFromSerializedProto(serialized);
    if (!status.ok()) {
      throw DataError(
          fmt::format("{}: not a SentencePiece model: {}", path, json_problem(status.ToString())));
    }
    num_pieces_ = processor_.GetPieceSize();
    if (num_pieces_ < 1)
      throw DataError(fmt::format("{}: the SentencePiece model has no pieces", path));
    unknown_text_ = decoded_by_library({processor_.unk_id()});
    find_start_rule();
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    check_utf8(text);
    std::vector<int> ids;
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok())
      throw DataError(fmt::format("cannot encode the text: {}", json_problem(status.ToString())));
    return {ids.begin(), ids.end()};
  }

  std::string decode(std::span<const int32_t> tokens, bool skip_special_tokens) const override {
    std::string bytes;
    bool at_start = true;
    for (const int32_t token : tokens) bytes += token_bytes(token, skip_special_tokens, at_start);
    return replace_invalid_utf8(bytes);
  }

  std::string token_bytes(int32_t token, bool skip_special_tokens, bool& at_start) const override {
    if (token < 0 || token >= num_pieces_) return "";
    const std::string& piece = processor_.IdToPiece(token);
    if (processor_.IsControl(token)) return skip_special_tokens ? "" : piece;
    const bool was_at_start = std::exchange(at_start, false);
    if (processor_.IsUnknown(token)) return unknown_text_;
    if (processor_.IsByte(token)) return byte_of(piece);
    if (!was_at_start || !drops_first_blank_ || !piece.starts_with(kSpaceMark))
      return with_blanks(piece);
    at_start = drops_all_first_blanks_ && piece == kSpaceMark;
    return with_blanks(std::string_view(piece).substr(kSpaceMark.size()));
  }

  int64_t vocab_size() const override { return num_pieces_; }

  std::optional<int32_t> eos_token_id() const override {
    const int id = processor_.eos_id();
    return id < 0 ? std::nullopt : std::optional<int32_t>(id);
  }

  std::optional<int32_t> token_to_id(std::string_view piece) const override {
    const int id =
        processor_.PieceToId({piece.data(), piece.size()});  // the unknown id when absent
    if (id < 0 || id >= num_pieces_ || processor_.IdToPiece(id) != piece) return std::nullopt;
    return id;
  }

 private:
  std::string decoded_by_library(const std::vector<int>& ids) const {
    std::string text;
    const auto status = processor_.Decode(ids, &text);
    return status.ok() ? text : "";
  }

  // Models trained with a dummy prefix drop the blank it made, those that remove extra blanks drop
  // all at the start; the flags show only in what the library decodes.
  void find_start_rule() {
    for (int id = 0; id < num_pieces_ && !drops_first_blank_; ++id) {
      if (processor_.IsControl(id) || processor_.IsUnknown(id) || processor_.IsByte(id)) continue;
      const std::string& piece = processor_.IdToPiece(id);
      if (piece.starts_with(kSpaceMark))
        drops_first_blank_ = decoded_by_library({id}) != with_blanks(piece);
    }
    const auto blank = token_to_id(kSpaceMark);
    drops_all_first_blanks_ = blank && decoded_by_library({*blank, *blank}).empty();
  }

  // A byte piece is spelt "<0x0A>".
  static std::string byte_of(const std::string& piece) {
    unsigned value = 0;
    if (piece.size() != 6) return "";
    std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    return {static_cast<char>(value)};
  }

  sentencepiece::SentencePieceProcessor processor_;
  int num_pieces_ = 0;
  std::string unknown_text_;
  bool drops_first_blank_ = false;
  bool drops_all_first_blanks_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece_tokenizer(const std::filesystem::path& path) {
  return std::make_unique<SentencePieceTokenizer>(read_whole_file(path, kMaxModelBytes),
                                                  path.string());
}

}  // namespace grpo::model
