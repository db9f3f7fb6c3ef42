// Lists of plain values, and numbers, as bytes, for files that the same build reads again.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace structgen {

// Appends values with their number.
template <class Value>
void put(std::string& out, const std::vector<Value>& values) {
  const uint64_t count = values.size();
  out.append(reinterpret_cast<const char*>(&count), sizeof count);
  out.append(reinterpret_cast<const char*>(values.data()), count * sizeof(Value));
}

// Takes from the front of `data` what put() wrote.  Throws std::invalid_argument where that is not all there.
template <class Value>
void take(std::string_view& data, std::vector<Value>& values) {
  uint64_t count = 0;
  if (data.size() < sizeof count) throw std::invalid_argument("the data is cut short");
  std::memcpy(&count, data.data(), sizeof count);
  data.remove_prefix(sizeof count);
  if (count > data.size() / sizeof(Value)) throw std::invalid_argument("the data is cut short");
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), data.data(), count * sizeof(Value));
  data.remove_prefix(count * sizeof(Value));
}

// Appends a number, seven bits a byte, the lowest first.
inline void put_number(std::string& out, uint32_t value) {
  for (; value > 0x7F; value >>= 7) out.push_back(static_cast<char>((value & 0x7F) | 0x80));
  out.push_back(static_cast<char>(value));
}

// Reads numbers and texts.  Its methods throw std::invalid_argument where they are not all there.
class PackedReader {
 public:
  explicit PackedReader(std::string_view data) : at_(data.data()), end_(data.data() + data.size()) {}
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  uint32_t number() {
    if (at_ != end_ && (*at_ & kMore) == 0) return static_cast<uint32_t>(*at_++);
    return long_number();
  }
  std::string_view text(size_t size) {
    if (size > left()) throw std::invalid_argument("the data is cut short");
    at_ += size;
    return {at_ - size, size};
  }

 private:
  static constexpr char kMore = static_cast<char>(0x80);  // of a byte that is not the last of a number

  uint32_t long_number() {
    constexpr unsigned kBits = 7, kMaxShift = 28;
    uint32_t value = 0;
    for (unsigned shift = 0; shift <= kMaxShift && at_ != end_; shift += kBits) {
      const auto byte = static_cast<uint8_t>(*at_++);
      value |= uint32_t{byte & 0x7FU} << shift;
      if (byte <= 0x7F) return value;
    }
    throw std::invalid_argument("a number has no end");
  }

  const char* at_;
  const char* end_;
};

}  // namespace structgen
