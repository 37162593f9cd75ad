"""A jail for code that a model wrote: the kernel keeps it apart, and its tests run where it cannot reach them."""
