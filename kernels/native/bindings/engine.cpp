// Limits, the vocabulary's trie, and the engine of a vocabulary.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/text.h"
#include "masks/engine.h"
#include "masks/trie.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

void bind_limits(nb::module_& m) {
  nb::class_<Limits>(m, "Limits")
      .def(nb::init<>())
      .def_rw("states", &Limits::states)
      .def_rw("regular_states", &Limits::regular_states)
      .def_rw("steps", &Limits::steps)
      .def_rw("distance_steps", &Limits::distance_steps)
      .def_rw("cache_bytes", &Limits::cache_bytes);
}

void bind_token_trie(nb::module_& m) {
  nb::class_<TokenTrie>(m, "TokenTrie")
      .def(nb::new_([](nb::sequence tokens) {
             std::vector<std::string> texts;
             texts.reserve(nb::len(tokens));
             for (nb::handle token : tokens) texts.emplace_back(view(nb::cast<nb::bytes>(token)));
             nb::gil_scoped_release release;
             return std::make_shared<TokenTrie>(texts);
           }),
           "tokens"_a)
      .def("to_bytes", [](const TokenTrie& self) { return to_bytes(self.serialize()); })
      .def_static("from_bytes", [](nb::bytes data) { return std::make_shared<TokenTrie>(TokenTrie::deserialize(view(data))); }, "data"_a)
      .def("__len__", &TokenTrie::size)
      .def_prop_ro("node_count", [](const TokenTrie& self) { return self.trie().size(); })
      .def_prop_ro("max_token_bytes", [](const TokenTrie& self) { return self.trie().max_depth; })
      .def_prop_ro("memory_bytes", &TokenTrie::bytes)
      .def("nodes",
           [](const TokenTrie& self) {
             const Trie& trie = self.trie();
             const size_t nodes = trie.size(), tokens = trie.tokens.size();
             return nb::make_tuple(to_numpy(std::vector(trie.byte), {nodes}), to_numpy(std::vector(trie.depth), {nodes}),
                                   to_numpy(std::vector(trie.token_begin), {nodes + 1}), to_numpy(std::vector(trie.tokens), {tokens}));
           })
      .def_prop_ro("derived_limit", &TokenTrie::derived_limit)
      .def("drop_derived", &TokenTrie::drop_derived, nb::call_guard<nb::gil_scoped_release>());
}

size_t memory_bytes(Engine& self) {
  nb::gil_scoped_release release;
  const std::shared_lock lock(self.mutex());
  return self.bytes_used();
}

void drop_rows(Engine& self) {
  nb::gil_scoped_release release;
  const std::unique_lock lock(self.mutex());
  self.trim(0);
}

nb::dict statistics(Engine& self) {
  std::shared_lock lock(self.mutex(), std::defer_lock);
  {
    nb::gil_scoped_release release;
    lock.lock();
  }
  nb::dict result;
  result["terms"] = self.machine().automaton().terms().size();
  result["states"] = self.machine().automaton().size();
  result["frames"] = self.machine().frame_count();
  result["nodes"] = self.machine().size();
  result["rows"] = self.row_count();
  result["tries"] = self.trie_count();
  result["cache_bytes"] = self.cache_bytes();
  result["bytes"] = self.bytes_used();
  result["steps"] = self.machine().automaton().meter().steps;  // of the last call
  return result;
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_limits(m);
  bind_token_trie(m);
  nb::class_<Engine>(m, "Engine")
      .def(nb::new_([](std::shared_ptr<TokenTrie> tokens, uint32_t vocabulary_size) {
             if (vocabulary_size < tokens->size()) throw nb::value_error("engine: vocabulary size is below the number of tokens");
             return std::shared_ptr<Engine>(new Engine(std::move(tokens), vocabulary_size), Engine::dispose);
           }),
           "tokens"_a, "vocabulary_size"_a)
      .def_prop_ro("byte_complete", &Engine::byte_complete)
      .def_prop_ro("memory_bytes", &memory_bytes)
      .def_prop_ro("statistics", &statistics)
      .def("drop_rows", &drop_rows)
      .def("pretend_wanted", [](Engine& self, bool waits) { self.mutex().pretend(waits); }, "waits"_a);
}

}  // namespace structgen
