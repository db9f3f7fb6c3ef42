"""Published drafters beside the default one."""
