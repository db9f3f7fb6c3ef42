// Containers that grow by a page at a time.  A large vector that doubles moves all its contents at once, which takes
// milliseconds of one step; and pages are few, so that an engine of a hundred MiB is freed in few pieces.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace structgen {

constexpr size_t kPageBytes = 4096;

// How many values a page holds, as a power of two.
template <class Value>
constexpr unsigned kPageShift = static_cast<unsigned>(std::bit_width(std::max<size_t>(kPageBytes / sizeof(Value), 1)) - 1);

// Values in the order in which they were added.  They stay where they are.
template <class Value>
class Pages {
 public:
  Pages() = default;
  Pages(Pages&& other) noexcept : pages_(std::move(other.pages_)), size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(pages_, other.pages_);
    std::swap(size_, other.size_);
    return *this;
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { clear(); }

  Value& operator[](size_t index) { return *checked(index); }
  const Value& operator[](size_t index) const { return *checked(index); }
  template <class... Arguments>
  Value& emplace_back(Arguments&&... arguments) {
    if (size_ >> kShift == pages_.size()) pages_.push_back(std::make_unique_for_overwrite<Page>());
    Value* const made = std::construct_at(address(size_), std::forward<Arguments>(arguments)...);
    ++size_;
    return *made;
  }
  void push_back(const Value& value) { emplace_back(value); }
  void push_back(Value&& value) { emplace_back(std::move(value)); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void clear() {
    if constexpr (!std::is_trivially_destructible_v<Value>)
      for (size_t index = 0; index < size_; ++index) std::destroy_at(address(index));
    pages_.clear();
    size_ = 0;
  }
  size_t bytes() const { return pages_.size() * (sizeof(Page) + sizeof(pages_[0])); }

 private:
  static constexpr unsigned kShift = kPageShift<Value>;
  static constexpr size_t kMask = (size_t{1} << kShift) - 1;

  struct Page {
    alignas(Value) std::byte bytes[(kMask + 1) * sizeof(Value)];
  };

  Value* address(size_t index) const { return reinterpret_cast<Value*>(pages_.data()[index >> kShift]->bytes) + (index & kMask); }
  // As containers of the standard library check it: every index, and in fewer instructions than that of a page takes.
  Value* checked(size_t index) const {
    if (index >= size_) [[unlikely]] std::abort();
    return address(index);
  }

  std::vector<std::unique_ptr<Page>> pages_;
  size_t size_ = 0;
};

// From ids to values, all of them Value{Fallback...} until they are set; ids that are near each other share a page.
template <class Value, auto... Fallback>
class ById {
 public:
  const Value& operator[](size_t id) const {
    const size_t page = id >> kShift;
    static constexpr Value fallback{Fallback...};
    return page < pages_.size() && pages_[page] ? pages_[page][id & kMask] : fallback;
  }
  // To set it.
  Value& at(size_t id) {
    const size_t page = id >> kShift;
    if (page >= pages_.size()) pages_.resize(std::max(page + 1, 2 * pages_.size()));
    if (!pages_[page]) {
      pages_[page] = std::make_unique_for_overwrite<Value[]>(kMask + 1);
      std::fill_n(pages_[page].get(), kMask + 1, Value{Fallback...});
      ++made_;
    }
    return pages_[page][id & kMask];
  }
  void clear() {
    pages_.clear();
    made_ = 0;
  }
  size_t bytes() const { return made_ * (kMask + 1) * sizeof(Value) + pages_.size() * sizeof(pages_[0]); }

 private:
  static constexpr unsigned kShift = kPageShift<Value>;
  static constexpr size_t kMask = (size_t{1} << kShift) - 1;

  std::vector<std::unique_ptr<Value[]>> pages_;
  size_t made_ = 0;
};

}  // namespace structgen
