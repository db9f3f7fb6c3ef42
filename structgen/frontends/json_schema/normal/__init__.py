"""From schema objects to the normal form: assertions by type, and a disjunction of conjunctions of them."""
