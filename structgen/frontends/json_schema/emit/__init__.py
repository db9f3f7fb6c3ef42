"""From the normal form to the grammar IR: a plan for each conjunction of schemas, then terms for each type."""
