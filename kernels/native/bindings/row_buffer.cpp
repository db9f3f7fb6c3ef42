// The masks of a batch in a buffer that stays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "matcher/row_buffer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

// Remembers whose row each is: in most steps the owners are the same, and nothing of them is looked up.
class OwnedRows {
 public:
  explicit OwnedRows(Bitmask rows)
      : array_(rows), buffer_(reinterpret_cast<uint32_t*>(rows.data()), rows.shape(0), static_cast<uint32_t>(rows.shape(1))), slots_(rows.shape(0)) {}

  // Fills a row for the owner of each key, whose matcher `matcher_of(owner)` returns once; the rows that the caller has to fill.
  std::vector<uint32_t> fill_owned(const nb::dict& owners, const nb::list& keys, const nb::callable& matcher_of) {
    const size_t count = nb::len(keys);
    check_count(count);
    matchers_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      PyObject* const key = PyList_GetItem(keys.ptr(), static_cast<Py_ssize_t>(i));
      if (!key) throw nb::python_error();  // the callable has made the list shorter
      PyObject* const owner = PyDict_GetItemWithError(owners.ptr(), key);
      if (!owner) {
        if (!PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, key);
        throw nb::python_error();
      }
      Slot& slot = slots_[i];
      if (slot.owner.ptr() != owner) own(slot, nb::borrow(owner), matcher_of);
      matchers_[i] = slot.native;
    }
    for (size_t i = count; i < slots_.size() && slots_[i].owner.is_valid(); ++i) slots_[i] = {};
    return fill_rows();
  }
  // The same for matchers that are given.
  std::vector<uint32_t> fill(nb::handle given) {
    std::vector<Matcher*> matchers = take_matchers("fill", given);
    check_count(matchers.size());
    for (const Matcher* matcher : matchers) check_width(*matcher);
    matchers_ = std::move(matchers);
    return fill_rows();
  }

  void forget() {
    for (size_t i = 0; i < slots_.size(); ++i) {
      buffer_.forget(i);
      slots_[i] = {};
    }
  }

 private:
  struct Slot {
    nb::object owner, matcher;
    Matcher* native = nullptr;
  };

  void check_count(size_t count) const {
    if (count > buffer_.size())
      throw nb::index_error((std::to_string(count) + " rows of a buffer that has " + std::to_string(buffer_.size())).c_str());
  }
  void check_width(const Matcher& matcher) const {
    const uint32_t words = matcher.constraint().words();
    if (words != buffer_.words())
      throw nb::value_error(("bitmask: rows have " + std::to_string(buffer_.words()) + " words; the vocabulary needs ceil(V / 32) = " +
                             std::to_string(words)).c_str());
  }
  // The GIL is kept for what is known: whoever gives it up waits for a thread that runs Python, for milliseconds.
  std::vector<uint32_t> fill_rows() {
    left_.clear();
    failed_.clear();
    buffer_.fill_known(matchers_, left_);
    if (!left_.empty()) {
      const nb::gil_scoped_release release;
      buffer_.fill_left(matchers_, left_, failed_);
    }
    return failed_;
  }
  void own(Slot& slot, nb::object owner, const nb::callable& matcher_of) const {
    nb::object matcher = matcher_of(owner);
    Matcher* native = nullptr;  // which None is cast to
    if (!nb::try_cast(matcher, native) || !native) refuse_argument("fill_owned", "matcher_of", matcher);
    check_width(*native);
    slot = {std::move(owner), std::move(matcher), native};
  }

  Bitmask array_;  // keeps the memory of the rows
  RowBuffer buffer_;
  std::vector<Slot> slots_;
  std::vector<Matcher*> matchers_;
  std::vector<uint32_t> left_, failed_;
};

}  // namespace

void bind_row_buffer(nb::module_& m) {
  nb::class_<OwnedRows>(m, "RowBuffer")
      .def("__init__", [](OwnedRows* self, nb::handle rows) { new (self) OwnedRows(*GivenMask("RowBuffer", rows)); }, "rows"_a.none())
      .def("fill", &OwnedRows::fill, nb::sig("def fill(self, matchers: Sequence[Matcher]) -> list[int]"), "matchers"_a.none())
      .def("fill_owned", &OwnedRows::fill_owned, "owners"_a, "keys"_a, "matcher_of"_a)
      .def("forget", &OwnedRows::forget);
}

}  // namespace structgen
