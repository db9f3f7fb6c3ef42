"""Published drafters, in addition to the default one."""
