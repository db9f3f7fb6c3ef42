// Samplers of llama.cpp: addresses go in and out, since Python has the library by ctypes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/bindings.h"
#include "matcher/chain_sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

// Shares the state with samplers of llama.cpp, which may live longer than the interpreter's objects.
struct SharedSampler {
  std::shared_ptr<ChainSampler> state;
};

// (cause, tokens before it, token, candidates, whether none could be chosen, what), or None.
nb::object fault(const SharedSampler& self) {
  const std::optional<ChainSampler::Fault> found = self.state->fault();
  if (!found) return nb::none();
  static constexpr const char* kCauses[] = {"refused", "starved", "failed"};
  return nb::make_tuple(kCauses[static_cast<size_t>(found->cause)], found->tokens, found->token, found->candidates, found->starved, found->what);
}

}  // namespace

void bind_chain_sampler(nb::module_& m) {
  nb::class_<SharedSampler>(m, "ChainSampler")
      .def("__init__",
           [](SharedSampler* self, std::shared_ptr<const Constraint> constraint, std::optional<uint32_t> budget) {
             nb::gil_scoped_release release;
             new (self) SharedSampler{std::make_shared<ChainSampler>(std::move(constraint), budget)};
           },
           "constraint"_a, "budget"_a.none() = nb::none())
      // The address of a new `llama_sampler`, which `init`, the address of llama_sampler_init, makes; 0 if that does not
      // make what llama.h says.
      .def("wrap",
           [](const SharedSampler& self, uintptr_t init) {
             return reinterpret_cast<uintptr_t>(ChainSampler::wrap(self.state, reinterpret_cast<llama::Init>(init)));
           },
           "init"_a)
      // The state of the `llama_sampler` at an address, None if it is another kind of sampler.
      .def_static("find",
                  [](uintptr_t sampler) -> std::optional<SharedSampler> {
                    auto state = ChainSampler::find(reinterpret_cast<const llama::Sampler*>(sampler));
                    return state ? std::optional(SharedSampler{std::move(state)}) : std::nullopt;
                  },
                  "sampler"_a)
      .def_static("table", [] { return reinterpret_cast<uintptr_t>(ChainSampler::table()); })
      .def_static("living", &ChainSampler::living)
      .def("fault", &fault)
      .def_prop_ro("tokens", [](const SharedSampler& self) { return self.state->tokens(); })
      .def_prop_ro("is_accepting", [](const SharedSampler& self) { return self.state->is_accepting(); })
      .def_prop_ro("is_terminated", [](const SharedSampler& self) { return self.state->is_terminated(); });
}

}  // namespace structgen
