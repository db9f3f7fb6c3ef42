// Attention of new tokens over the caches of their own sequences.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/own_attention.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

using Entries = nb::ndarray<nb::ndim<5>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;
using Results = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using Span = std::tuple<Entries, size_t, size_t>;
using Part = std::tuple<size_t, size_t, std::vector<Span>, std::optional<Array<bool, 2>>>;

// The sequences of a pass, whose caches stay where they are while it lives.
class OwnAttention {
 public:
  OwnAttention(size_t key_value_heads, size_t groups, std::vector<Part> parts) : parts_(std::move(parts)) {
    check(key_value_heads > 0 && groups > 0 && !parts_.empty(), "OwnAttention: there must be heads and sequences");
    const Entries& like = entries_of(0);
    layers_ = like.shape(0);
    shape_ = {key_value_heads, groups, like.shape(4)};
    is_double_ = like.dtype() == nb::dtype<double>();
    check(is_double_ || like.dtype() == nb::dtype<float>(), "OwnAttention: entries must be float32 or float64");
    check(shape_.width > 0 && shape_.width % 8 == 0, "OwnAttention: the width of a head must be a multiple of 8");
    spans_.resize(parts_.size());
    for (size_t index = 0; index < parts_.size(); ++index) add(index);
  }

  void attend(size_t layer, const Rows& queries, const Rows& keys, const Rows& values, const Results& output, const Results& log_sums) const {
    const size_t heads = shape_.key_value_heads;
    check(layer < layers_, "OwnAttention: there is no such layer");
    const LayerRows rows{layer, rows_of(queries, heads * shape_.groups), rows_of(keys, heads), rows_of(values, heads)};
    const size_t results = queries.shape(0) * heads * shape_.groups;
    check(output.size() == results * shape_.width && log_sums.size() == results,
          "OwnAttention: the results must have the rows, heads and width of the queries");
    nb::gil_scoped_release release;
    if (is_double_)
      attend_to_own<double>(shape_, news_, rows, output.data(), log_sums.data());
    else
      attend_to_own<float>(shape_, news_, rows, output.data(), log_sums.data());
  }

 private:
  const Entries& entries_of(size_t part) const {
    check(!std::get<2>(parts_[part]).empty(), "OwnAttention: a sequence needs entries");
    return std::get<0>(std::get<2>(parts_[part])[0]);
  }

  void add(size_t index) {
    const auto& [first, count, spans, visible] = parts_[index];
    const Entries& like = entries_of(0);
    for (const auto& [entries, start, length] : spans_of(index)) {
      check(entries.dtype() == like.dtype() && entries.shape(0) == layers_ && entries.shape(1) == 2 && entries.shape(2) == shape_.key_value_heads &&
                entries.shape(4) == shape_.width,
            "OwnAttention: entries must be [layers, 2, heads, capacity, width], alike for all");
      const bool is_last = spans_[index].size() + 1 == spans.size();
      const size_t capacity = entries.shape(3), more = is_last ? count : 0;
      check(start <= capacity && length <= capacity - start && more <= capacity - start - length, "OwnAttention: a span is longer than its entries");
      spans_[index].push_back({entries.data(), capacity, start, length});
    }
    check(count > 0 && (!visible || (visible->shape(0) == count && visible->shape(1) == count)), "OwnAttention: visible must be [rows, rows]");
    for (size_t row = 0; visible && row < count; ++row)
      check(visible->data()[row * count + row], "OwnAttention: a new token must see itself");
    news_.push_back({first, count, spans_[index], visible ? reinterpret_cast<const uint8_t*>(visible->data()) : nullptr});
    check(first + count > first, "OwnAttention: too many rows");
    end_ = std::max(end_, first + count);
  }

  const std::vector<Span>& spans_of(size_t index) const {
    entries_of(index);
    return std::get<2>(parts_[index]);
  }

  HeadRows rows_of(const Rows& rows, size_t heads) const {
    check(rows.shape(0) >= end_ && rows.shape(1) == heads && rows.shape(2) == shape_.width, "OwnAttention: rows must be [rows, heads, width]");
    check(rows.stride(2) == 1 && (heads == 1 || rows.stride(1) == static_cast<int64_t>(shape_.width)) && (end_ == 1 || rows.stride(0) >= 0),
          "OwnAttention: the heads of a row must be contiguous");
    return {rows.data(), static_cast<size_t>(rows.stride(0))};
  }

  std::vector<Part> parts_;
  std::vector<std::vector<CacheSpan>> spans_;
  std::vector<NewRows> news_;
  AttentionShape shape_{};
  size_t layers_ = 0, end_ = 0;
  bool is_double_ = false;
};

}  // namespace

void bind_attention(nb::module_& m) {
  nb::class_<OwnAttention>(m, "OwnAttention")
      .def(nb::init<size_t, size_t, std::vector<Part>>(), "key_value_heads"_a, "groups"_a, "parts"_a)
      .def("attend", &OwnAttention::attend, "layer"_a, "queries"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(),
           "output"_a.noconvert(), "log_sums"_a.noconvert());
}

}  // namespace structgen
