#include <nanobind/nanobind.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "Automaton engine of structgen: vocabulary trie, lazily derived automata, matcher and masks.";

  // What an exception's traceback still holds when the interpreter ends is no leak, and the message would bury it.
  nb::set_leak_warnings(false);

  structgen::bind_errors(m);
  structgen::bind_arguments(m);
  structgen::bind_attention(m);
  structgen::bind_products(m);
  structgen::bind_labels(m);
  structgen::bind_engine(m);
  structgen::bind_grammar(m);
  structgen::bind_json_schema(m);
  structgen::bind_lark(m);
  structgen::bind_constraint(m);
  structgen::bind_matcher(m);
  structgen::bind_row_buffer(m);
  structgen::bind_canonical(m);
  structgen::bind_chain_sampler(m);
  structgen::bind_chart(m);
  structgen::bind_unfolding(m);
  structgen::bind_class_scores(m);
  structgen::bind_chain(m);
}
