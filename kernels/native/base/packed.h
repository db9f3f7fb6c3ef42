// Lists of plain values as bytes, for files that the same build reads again.
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

}  // namespace structgen
