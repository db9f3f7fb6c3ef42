// The Python face of the engine: thin, typed, and free of policy.  One function for each subject.
#pragma once

#include <nanobind/nanobind.h>

namespace structgen {

void bind_arguments(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_products(nanobind::module_& m);
void bind_errors(nanobind::module_& m);
void bind_labels(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_grammar(nanobind::module_& m);
void bind_json_schema(nanobind::module_& m);
void bind_lark(nanobind::module_& m);
void bind_constraint(nanobind::module_& m);
void bind_matcher(nanobind::module_& m);
void bind_row_buffer(nanobind::module_& m);
void bind_chain_sampler(nanobind::module_& m);
void bind_chart(nanobind::module_& m);
void bind_unfolding(nanobind::module_& m);
void bind_canonical(nanobind::module_& m);
void bind_class_scores(nanobind::module_& m);
void bind_chain(nanobind::module_& m);

}  // namespace structgen
