// What the front ends use of nanobind, for a build without Python: objects that hold terms, texts, lists and functions.
//
// The front ends pass objects of the Python side through, and call it for what they leave to it.  Here the other side is
// C++ (`schema_leaves.cpp`, `module.cpp`); objects are compared by identity, as there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace nanobind {

using value_error = std::invalid_argument;
class object;
using List = std::vector<object>;
using Function = std::function<object(const List&)>;

class object {
 public:
  object() = default;
  object(bool value) : held_(std::make_shared<Value>(value)) {}
  object(size_t value) : held_(std::make_shared<Value>(value)) {}
  object(std::string value) : held_(std::make_shared<Value>(std::move(value))) {}
  object(List value) : held_(std::make_shared<Value>(std::move(value))) {}
  object(Function value) : held_(std::make_shared<Value>(std::move(value))) {}
  object(std::map<std::string, object> methods) : held_(std::make_shared<Value>(std::move(methods))) {}
  // Something that lives as long as the object, read by `cast<const T&>`.
  template <class T>
  object(std::shared_ptr<const T> value) : held_(std::make_shared<Value>(std::static_pointer_cast<const void>(std::move(value)))) {}
  static object none() {
    object made;
    made.held_ = std::make_shared<Value>();
    return made;
  }

  bool is_valid() const { return held_ != nullptr; }
  bool is_none() const { return !held_ || std::holds_alternative<std::monostate>(*held_); }
  bool is(const object& other) const { return held_ == other.held_; }
  template <class T>
  const T& get() const {
    return std::get<T>(*held_);
  }
  const void* native() const { return std::get<std::shared_ptr<const void>>(*held_).get(); }
  const object& attr(const char* name) const { return methods_ ? methods_->at(name) : get<std::map<std::string, object>>().at(name); }
  // The same function with methods.
  object with(std::map<std::string, object> methods) const {
    object made = *this;
    made.methods_ = std::make_shared<std::map<std::string, object>>(std::move(methods));
    return made;
  }
  object operator[](size_t index) const { return get<List>().at(index); }
  object operator()(const std::string& text) const { return get<Function>()({text}); }
  object operator()(const std::string& text, const object& other) const { return get<Function>()({text, other}); }
  List::const_iterator begin() const;
  List::const_iterator end() const;

 private:
  using Value = std::variant<std::monostate, bool, size_t, std::string, List, Function, std::map<std::string, object>, std::shared_ptr<const void>>;
  std::shared_ptr<Value> held_;
  std::shared_ptr<std::map<std::string, object>> methods_;
};

inline List::const_iterator object::begin() const { return get<List>().begin(); }
inline List::const_iterator object::end() const { return get<List>().end(); }

using handle = object;
using dict = std::vector<std::pair<object, object>>;
inline object borrow(const object& value) { return value; }

template <class T>
struct is_list : std::false_type {};
template <class T>
struct is_list<std::vector<T>> : std::true_type {};

template <class T>
T cast(const object& value) {
  if constexpr (std::is_reference_v<T>) {
    return *static_cast<const std::remove_reference_t<T>*>(value.native());
  } else if constexpr (is_list<T>::value) {
    T made;
    for (const object& one : value) made.push_back(cast<typename T::value_type>(one));
    return made;
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string>) {
    return value.get<T>();
  } else {
    return static_cast<T>(value.get<size_t>());
  }
}

}  // namespace nanobind
